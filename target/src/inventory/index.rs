//! Process-wide indexes of namespaces and subsystems.

use std::fmt;

/// Index of a namespace, unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceIndex {
    /// Position in tables, reused after the namespace is gone.
    pub(crate) slot: u32,
    /// Number of namespaces opened before it.
    pub(crate) serial: u32,
}

impl fmt::Display for NamespaceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.serial)
    }
}

/// Index of a subsystem, unique in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubsystemIndex {
    /// Position in tables, reused after the subsystem is gone.
    pub(crate) slot: u32,
    /// Number of subsystems created before it.
    pub(crate) serial: u32,
}

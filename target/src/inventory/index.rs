//! Process-wide indexes of namespaces and subsystems.

use std::fmt;

/// Index of a namespace. No other namespace gets the same index while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceIndex {
    /// Position in per-namespace tables, reused after the namespace is removed.
    pub(crate) slot: u32,
    /// Number of namespaces opened before it in this process.
    pub(crate) serial: u32,
}

impl fmt::Display for NamespaceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.serial)
    }
}

/// Index of a subsystem. No other subsystem gets the same index while the process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubsystemIndex {
    /// Position in per-subsystem tables, reused after the subsystem is removed.
    pub(crate) slot: u32,
    /// Number of subsystems created before it in this process.
    pub(crate) serial: u32,
}

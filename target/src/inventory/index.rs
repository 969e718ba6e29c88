//! Names of namespaces and subsystems in this process.

use std::fmt;

/// Names a namespace in this process. No other one ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespaceIndex {
    /// Its place in tables, which others had before and will have after it.
    pub(crate) slot: u32,
    /// How many namespaces were opened before it.
    pub(crate) serial: u32,
}

impl fmt::Display for NamespaceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.serial)
    }
}

/// Names a subsystem in this process. No other one ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubsystemIndex {
    /// Its place in tables, which others had before and will have after it.
    pub(crate) slot: u32,
    /// How many subsystems there were before it.
    pub(crate) serial: u32,
}

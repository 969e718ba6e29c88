//! Which process this is: handles of a parent process are of no use in its child.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

/// Forks between the process that loaded the module and this one, as Python counts them.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// The process that made a handle. Forks that Python does not see change the process number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HomeProcess {
    id: u32,
    forks: u64,
}

impl HomeProcess {
    /// The process that the caller runs in.
    pub(crate) fn current() -> Self {
        Self { id: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether the caller runs in this process, not in a child of it.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Counts a fork: `os.register_at_fork` calls it in each child.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

//! Detection of forks: handles of a parent process cannot be used in its child.

use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

/// Number of forks between the process that loaded the module and this one, counted by Python.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// Process that made a handle. Forks that Python does not count change its process identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HomeProcess {
    id: u32,
    forks: u64,
}

impl HomeProcess {
    /// Returns the process that the caller runs in.
    pub(crate) fn current() -> Self {
        Self { id: std::process::id(), forks: FORKS.load(Ordering::Relaxed) }
    }

    /// Returns whether the caller runs in this process, and not in a child of it.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// Counts a fork; registered with `os.register_at_fork`, which calls it in each child.
#[pyfunction]
pub(crate) fn after_fork_in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

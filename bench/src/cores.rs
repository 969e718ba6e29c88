//! The cores of the target and of the host, one for each.

use std::thread::available_parallelism;

use anyhow::{Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

pub(crate) const TARGET_CORE: usize = 0;
pub(crate) const HOST_CORE: usize = 1;

/// Says so where there are too few.
pub(crate) fn check() -> Result<()> {
    let cores = available_parallelism().map_or(1, usize::from);
    ensure!(cores > 1, "the bench needs two cores, one for the target and one for the host");
    Ok(())
}

/// The words that keep a program on a core.
pub(crate) fn pinned(core: usize) -> [String; 3] {
    ["taskset".to_owned(), "--cpu-list".to_owned(), core.to_string()]
}

/// Keeps the calling thread on a core, if the machine has it, which the bench makes sure of at its
/// start.
pub(crate) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

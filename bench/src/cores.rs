//! Cores that the target and the host are pinned to.

use std::thread::available_parallelism;

use anyhow::{Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};

pub(crate) const TARGET_CORE: usize = 0;
pub(crate) const HOST_CORE: usize = 1;

/// Fails if the machine has fewer than two cores.
pub(crate) fn check() -> Result<()> {
    let cores = available_parallelism().map_or(1, usize::from);
    ensure!(cores > 1, "the bench needs two cores, one for the target and one for the host");
    Ok(())
}

/// Command prefix that pins a program to a core.
pub(crate) fn pinned(core: usize) -> [String; 3] {
    ["taskset".to_owned(), "--cpu-list".to_owned(), core.to_string()]
}

/// Pins the calling thread to a core. Errors are ignored, since [`check`] has counted the cores.
pub(crate) fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}

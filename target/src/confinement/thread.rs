//! Confinement of threads: capabilities and paths, which the kernel keeps for each thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

use landlock::RulesetCreated;

use super::capabilities;

/// Paths that threads may open, inside; `None` if the kernel has no Landlock. Unset while threads
/// are not confined.
static PATHS: OnceLock<Option<RulesetCreated>> = OnceLock::new();
/// Whether a thread keeps what it should have given up.
static FAILED: AtomicBool = AtomicBool::new(false);

/// Number of [`EarlyThread`] that exist, and its changes.
static EARLY: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// A thread that is started before the one that serves is confined, and has to confine itself.
#[derive(Debug)]
pub(crate) struct EarlyThread(());

impl EarlyThread {
    /// Called by the thread that starts it, so that [`wait_for_early_threads`] knows of it.
    pub(crate) fn announce() -> Self {
        *EARLY.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(())
    }

    /// Confines the calling thread, as the one that was announced.
    pub(crate) fn enter(self) {
        enter_thread();
    }
}

impl Drop for EarlyThread {
    fn drop(&mut self) {
        *EARLY.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        EARLY.1.notify_all();
    }
}

/// Waits until all threads that were announced are confined or could not be started: a list of
/// system calls that is applied before has none of the calls by which they confine themselves.
pub(crate) fn wait_for_early_threads() {
    let early = EARLY.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = EARLY.1.wait_while(early, |early| *early > 0);
    drop(waited);
}

/// Sets what [`enter_thread`] leaves to threads.
pub(crate) fn prepare_threads(paths: Option<RulesetCreated>) {
    let _ = PATHS.set(paths);
}

/// Confines the calling thread, and those that it starts from now on, to what was prepared.
pub(crate) fn enter_thread() {
    let Some(paths) = PATHS.get() else { return };
    let restricted = paths.as_ref().is_none_or(restrict);
    if capabilities::drop_unneeded().is_err() || !restricted {
        FAILED.store(true, Ordering::Relaxed);
    }
}

/// Whether [`enter_thread`] has failed on a thread.
pub(crate) fn has_failed() -> bool {
    FAILED.load(Ordering::Relaxed)
}

/// Applies a ruleset to the calling thread. Returns whether that worked.
fn restrict(ruleset: &RulesetCreated) -> bool {
    ruleset.try_clone().is_ok_and(|ruleset| ruleset.restrict_self().is_ok())
}

//! Barrier between the threads of all ranks, which a rank that fails can abort.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Barrier between the ranks of a loop. Unlike [`std::sync::Barrier`] it can be aborted, so that a
/// rank that fails does not block the others.
#[derive(Debug)]
pub(super) struct StepBarrier {
    ranks: usize,
    state: Mutex<BarrierState>,
    changed: Condvar,
}

/// Error of [`StepBarrier::wait`]: a rank has left the loop and aborted the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GivenUp;

#[derive(Debug, Default)]
struct BarrierState {
    waiting: usize,
    /// Number of times that every rank has arrived.
    passed: u64,
    given_up: bool,
}

impl StepBarrier {
    pub(super) fn new(ranks: usize) -> Self {
        Self { ranks, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Blocks until every rank has called this function, or fails once a rank has called `give_up`.
    pub(super) fn wait(&self) -> Result<(), GivenUp> {
        let mut state = self.lock();
        if state.given_up {
            return Err(GivenUp);
        }
        state.waiting += 1;
        let passed = state.passed;
        if state.waiting == self.ranks {
            state.waiting = 0;
            state.passed += 1;
            self.changed.notify_all();
        }
        while state.passed == passed && !state.given_up {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.passed == passed { Err(GivenUp) } else { Ok(()) }
    }

    /// Makes all present and future calls of `wait` return [`GivenUp`].
    pub(super) fn give_up(&self) {
        self.lock().given_up = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, BarrierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn nobody_is_a_step_ahead() {
        let (barrier, steps) = (StepBarrier::new(3), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for step in 1..=100 {
                        steps.fetch_add(1, Ordering::SeqCst);
                        barrier.wait().unwrap();
                        assert!(steps.load(Ordering::SeqCst) >= 3 * step);
                    }
                });
            }
        });
    }

    #[test]
    fn who_gives_up_frees_the_others() {
        let barrier = StepBarrier::new(2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| barrier.wait());
            barrier.give_up();
            assert_eq!(waiting.join().unwrap(), Err(GivenUp));
        });
        assert_eq!(barrier.wait(), Err(GivenUp));
    }
}

//! Callers: threads that wait for a result of their own, and drive the engines until it is ready.

use std::thread;
use std::time::Duration;

use rdma::Time;

use crate::driver::shared::SharedEngines;

/// Time for which a caller that has waited long lets others drive, on a host without a thread.
const YIELD_TO_OTHERS: Duration = Duration::from_millis(5);

/// A waiting caller, which is counted among those that drive.
pub(super) struct Caller<'a> {
    shared: &'a SharedEngines,
    /// Value of `DriverState::visits` when it last let others drive.
    seen: u64,
}

impl<'a> Caller<'a> {
    pub(super) fn enter(shared: &'a SharedEngines) -> Self {
        let mut state = shared.state();
        state.callers += 1;
        state.visits += 1;
        Self { shared, seen: state.visits }
    }

    /// Returns whether other callers have come since it last let others drive.
    pub(super) fn sees_others(&self) -> bool {
        self.shared.state().visits != self.seen
    }

    /// Waits until it is woken or `deadline`, without driving. If the others stop driving, the
    /// host's thread takes over. On a host without a thread it waits for a short time only, at most
    /// until `due`, when the engines must be turned.
    pub(super) fn stand_aside(&mut self, deadline: Option<Time>, due: Option<Time>, now: Time) {
        self.seen = self.shared.state().visits;
        if self.shared.threaded {
            self.leave();
            match deadline {
                Some(deadline) => thread::park_timeout(deadline - now),
                None => thread::park(),
            }
            self.shared.state().callers += 1;
        } else {
            self.shared.state().wake_parked();
            let look = now + YIELD_TO_OTHERS;
            thread::park_timeout(due.map_or(look, |due| due.min(look)) - now);
        }
    }

    /// Ends the caller's part in driving.
    fn leave(&self) {
        let mut state = self.shared.state();
        state.callers -= 1;
        state.wake_parked();
        // Its last turn may have left work that sleeping threads do not know of.
        let interrupt = state.is_overslept();
        drop(state);
        if interrupt {
            self.shared.interrupt();
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

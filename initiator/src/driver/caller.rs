//! Callers: threads that wait for a result of theirs, and drive the engines while they wait.

use std::thread;
use std::time::Duration;

use rdma::Time;

use crate::driver::shared::SharedEngines;

/// One that has waited long leaves the engines to others for this time, where no thread takes over
/// from them.
const YIELD_TO_OTHERS: Duration = Duration::from_millis(5);

/// A caller that drives, while it does.
pub(super) struct Caller<'a> {
    shared: &'a SharedEngines,
    /// How many callers there had been when it last stood aside for them.
    seen: u64,
}

impl<'a> Caller<'a> {
    pub(super) fn enter(shared: &'a SharedEngines) -> Self {
        let mut state = shared.state();
        state.callers += 1;
        state.visits += 1;
        Self { shared, seen: state.visits }
    }

    /// Whether others have come since it last stood aside.
    pub(super) fn sees_others(&self) -> bool {
        self.shared.state().visits != self.seen
    }

    /// Waits for its own result or `deadline`. Should the others stop driving, the host's thread
    /// takes over; a host without a thread makes it wait for a short time only, and not beyond
    /// `due`, when the engines want to be turned.
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

    /// Stops driving and waiting to drive.
    fn leave(&self) {
        let mut state = self.shared.state();
        state.callers -= 1;
        state.wake_parked();
        // Its last turn may have left something to do that those who sleep do not know of.
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

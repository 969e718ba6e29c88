//! Worlds that advance time when no party has anything to do.

use std::time::Duration;

use feedrail_target::stepped::Turn;
use rdma::Time;
use rdma::sim::SimNetwork;

/// Steps that one operation may wait.
const WAIT_STEPS: usize = 200;

/// A simulated network with all parties on it.
pub(crate) trait Clockwork {
    /// Steps after which everything has ended, or never will.
    const STEPS_MAX: usize;

    /// Every party does what is ready.
    fn turn(&mut self) -> Turn;

    /// The time, to be set.
    fn now(&mut self) -> &mut Time;

    /// The network of all parties.
    fn network(&self) -> &SimNetwork;

    /// Gives every party a turn, or advances time to the next event; false if no event will come.
    fn step(&mut self) -> bool {
        match self.turn() {
            Turn::Busy => {}
            Turn::SleepUntil(None) => return false,
            Turn::SleepUntil(Some(next)) => self.wait_until(next),
        }
        true
    }

    /// Moves the clock to `time`, and by 100 ns at least.
    fn wait_until(&mut self, time: Time) {
        let now = self.now();
        *now = time.max(*now + Duration::from_nanos(100));
    }

    /// Steps until nothing happens.
    fn rest(&mut self) {
        for _ in 0..Self::STEPS_MAX {
            if !self.step() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Waits until nothing is on its way.
    fn settle(&mut self) {
        for _ in 0..WAIT_STEPS {
            if self.turn() == Turn::Busy {
                continue;
            }
            let Some(arrival) = self.network().next_event() else { return };
            self.wait_until(arrival);
        }
    }

    /// Waits for a time, as far as not too much happens in it.
    fn pass(&mut self, time: Duration) {
        let until = *self.now() + time;
        for _ in 0..WAIT_STEPS {
            match self.turn() {
                Turn::SleepUntil(Some(next)) if next < until => self.wait_until(next),
                Turn::SleepUntil(_) => break,
                Turn::Busy => {}
            }
        }
        let now = self.now();
        *now = until.max(*now);
    }
}

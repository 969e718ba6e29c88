//! Duration for which an idle core polls before it sleeps.
//!
//! A wake-up costs more than a short wait: a host that reads one block after the other, or sends
//! several commands and waits for all of them, would pay for it each time. So an idle core polls
//! for as long as the next command on a namespace recently took to arrive, up to a maximum.
//! Commands that only keep a connection alive do not count. Between two polls the core yields the
//! processor. If other threads then keep it for long, as hosts on the same core do, the core
//! continues to poll only if its last turn had a single operation: with several, a thread that is
//! woken by the first finds the others done, and the hosts need the processor more. Beside a thread
//! that computes, the core sleeps immediately, since it would get the processor back late.

use std::time::Duration;

use rdma::{CpuContention, Time};

/// Minimum polling time after any work, about the cost of a wake-up. If other threads keep the
/// processor for this long between two polls, they need it.
const MIN_POLLING: Duration = Duration::from_micros(50);

/// Number of turns with operations during which a core polls for [`MIN_POLLING`] only, after it
/// shared the processor with hosts that send several operations at a time.
const BACKOFF_TURNS: u32 = 64;

/// Polling time of one idle core (`window`), adapted to the times between operations.
#[derive(Debug)]
pub(crate) struct IdlePolling {
    most: Duration,
    window: Duration,
    last_work: Time,
    /// Operations on namespaces so far: those that have begun plus those that have ended.
    operations: u64,
    /// Whether the last turn with operations had more than one.
    several: bool,
    /// Remaining turns with operations until the polling time is adapted again.
    backoff_turns: u32,
    contention: CpuContention,
}

impl IdlePolling {
    /// Creates the state of a core that polls for at most `most` before it sleeps.
    pub(crate) fn new(now: Time, most: Duration) -> Self {
        Self {
            most,
            window: MIN_POLLING.min(most),
            last_work: now,
            operations: 0,
            several: false,
            backoff_turns: 0,
            contention: CpuContention::NONE,
        }
    }

    /// Records a turn that did work; `operations` is the number that have begun plus the number
    /// that have ended since the start.
    pub(crate) fn worked(&mut self, now: Time, operations: u64) {
        let done = operations - self.operations;
        if done > 0 {
            // An operation that began and ended within one turn counts as two.
            self.several = done > 2;
            match self.backoff_turns {
                0 => self.learn(now - self.last_work),
                _ => self.backoff_turns -= 1,
            }
        }
        self.operations = operations;
        self.last_work = now;
    }

    /// Whether the core polls once more instead of sleeping.
    pub(crate) fn should_poll(&self, now: Time) -> bool {
        now - self.last_work < self.window && !self.contention.should_sleep(now)
    }

    /// Records that other threads had the processor for `time` between two polls, until `now`.
    pub(crate) fn gave_way(&mut self, now: Time, time: Duration) {
        self.contention.gave_way(now, time);
        if time >= MIN_POLLING && self.several {
            self.backoff_turns = BACKOFF_TURNS;
            self.window = MIN_POLLING.min(self.most);
        }
    }

    /// Adapts the polling time to the time that the last operation took to arrive. Less than twice
    /// the maximum counts as short, since the time of a wake-up is saved too.
    fn learn(&mut self, waited: Duration) {
        let wanted = if waited < 2 * self.most { 2 * waited } else { Duration::ZERO };
        // A wait that is shorter than the others reduces the window by 1/16 only.
        let remembered =
            if wanted.is_zero() { Duration::ZERO } else { self.window - self.window / 16 };
        self.window = wanted.max(remembered).max(MIN_POLLING).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: Duration = Duration::from_millis(1);

    /// Records work at these intervals, with these numbers of started and ended operations.
    fn after(waits: &[(u64, u64)]) -> (IdlePolling, Time) {
        let mut now = Time::from_nanos(1);
        let mut polling = IdlePolling::new(now, MOST);
        work(&mut polling, &mut now, waits);
        (polling, now)
    }

    fn work(polling: &mut IdlePolling, now: &mut Time, waits: &[(u64, u64)]) {
        for (micros, operations) in waits {
            *now = *now + Duration::from_micros(*micros);
            polling.worked(*now, polling.operations + operations);
        }
    }

    fn polls_after(waits: &[(u64, u64)], micros: u64) -> bool {
        let (polling, now) = after(waits);
        polling.should_poll(now + Duration::from_micros(micros))
    }

    #[test]
    fn successive_single_reads_prolong_polling() {
        assert!(!polls_after(&[], 400));
        assert!(polls_after(&[(300, 1)], 400));
        assert!(polls_after(&[(300, 1), (5, 1), (5, 1)], 400));
    }

    #[test]
    fn rare_commands_do_not_prolong_polling() {
        assert!(!polls_after(&[(300, 1), (10_000, 1)], 60));
        assert!(polls_after(&[(300, 1), (10_000, 1)], 40));
    }

    #[test]
    fn keep_alive_does_not_prolong_polling() {
        assert!(!polls_after(&[(300, 0), (300, 0), (300, 0)], 60));
    }

    #[test]
    fn under_contention_it_does_not_poll_for_bursts() {
        let should_poll = |polling: &IdlePolling, now: Time| {
            polling.should_poll(now + Duration::from_micros(400))
        };
        let (mut polling, mut now) = after(&[(300, 3)]);
        polling.gave_way(now, MIN_POLLING - Duration::from_nanos(1));
        assert!(should_poll(&polling, now));
        polling.gave_way(now, MIN_POLLING);
        assert!(!should_poll(&polling, now));
        assert!(polling.should_poll(now + Duration::from_micros(40)));
        work(&mut polling, &mut now, &[(300, 3)].repeat(BACKOFF_TURNS as usize));
        assert!(!should_poll(&polling, now));
        work(&mut polling, &mut now, &[(300, 1)]);
        assert!(should_poll(&polling, now));
        polling.gave_way(now, MIN_POLLING);
        assert!(should_poll(&polling, now));
    }

    #[test]
    fn beside_a_computing_thread_it_sleeps_at_once() {
        let (mut polling, mut now) = after(&[(300, 1)]);
        for _ in 0..2 {
            assert!(polling.should_poll(now));
            polling.gave_way(now, Duration::from_millis(2));
        }
        assert!(!polling.should_poll(now));
        work(&mut polling, &mut now, &[(50_000, 1)]);
        assert!(polling.should_poll(now));
    }

    #[test]
    fn a_burst_makes_it_impatient_in_the_end() {
        let burst = [(300, 1)].into_iter().chain([(1, 1); 64]);
        assert!(!polls_after(&burst.collect::<Vec<_>>(), 400));
    }

    proptest! {
        #[test]
        fn it_never_waits_for_longer_than_it_may(
            waits in prop::collection::vec((0..5_000_u64, 0..5_u64), 0..50)
        ) {
            let (polling, now) = after(&waits);
            prop_assert!(!polling.should_poll(now + MOST));
            prop_assert!(polling.should_poll(now + (MIN_POLLING - Duration::from_nanos(1))));
        }
    }
}

//! How long a core that has nothing to do looks for work before it sleeps.
//!
//! A wake-up costs more than a short wait: a host that reads one block after the other would pay
//! for it with every read, and so would one that sends several at once and waits for all of them.
//! So a core polls for as long as commands on namespaces lately took to come, up to the maximum.
//! Commands that only keep a connection alive do not keep the core awake. Other threads get the
//! processor between two polls. Where they keep it for long, as the hosts do if they run on the
//! same core, the core still polls for a single operation, but not for several at once: a thread
//! that is woken by the first of them finds others done as well, and the hosts need the processor
//! more. Beside a thread that computes the core sleeps at once, since it would get the processor
//! back late.

use std::time::Duration;

use rdma::{CpuContention, Time};

/// It looks on for so long after anything, since a wake-up takes about as long. If others had the
/// processor for so long between two looks, they need it.
const LEAST: Duration = Duration::from_micros(50);

/// After it had to share the processor with hosts that send several operations at once so many
/// turns with operations have to pass before it learns from them.
const SHY: u32 = 64;

/// How long to look on, learnt from when work came.
#[derive(Debug)]
pub(crate) struct IdlePolling {
    most: Duration,
    window: Duration,
    last_work: Time,
    /// Operations on namespaces until now.
    operations: u64,
    /// The last turn with operations had several.
    several: bool,
    /// Turns with operations after which it learns again.
    shy: u32,
    contention: CpuContention,
}

impl IdlePolling {
    /// Of a core that looks on for `most` at the most.
    pub(crate) fn new(now: Time, most: Duration) -> Self {
        Self {
            most,
            window: LEAST.min(most),
            last_work: now,
            operations: 0,
            several: false,
            shy: 0,
            contention: CpuContention::NONE,
        }
    }

    /// There was work; `operations` on namespaces have begun and ended since the start.
    pub(crate) fn worked(&mut self, now: Time, operations: u64) {
        let done = operations - self.operations;
        if done > 0 {
            // One that began and ended at once counts twice.
            self.several = done > 2;
            match self.shy {
                0 => self.learn(now - self.last_work),
                _ => self.shy -= 1,
            }
        }
        self.operations = operations;
        self.last_work = now;
    }

    /// Whether to look on.
    pub(crate) fn looks_on(&self, now: Time) -> bool {
        now - self.last_work < self.window && !self.contention.should_sleep(now)
    }

    /// Between two looks, until `now`, others had the processor for `time`.
    pub(crate) fn gave_way(&mut self, now: Time, time: Duration) {
        self.contention.gave_way(now, time);
        if time >= LEAST && self.several {
            self.shy = SHY;
            self.window = LEAST.min(self.most);
        }
    }

    /// Waits of less than twice the maximum count as short, since the time of a wake-up is saved
    /// too.
    fn learn(&mut self, waited: Duration) {
        let wanted = if waited < 2 * self.most { 2 * waited } else { Duration::ZERO };
        // One that is rather short among longer ones does not undo what these have taught.
        let remembered =
            if wanted.is_zero() { Duration::ZERO } else { self.window - self.window / 16 };
        self.window = wanted.max(remembered).max(LEAST).min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MOST: Duration = Duration::from_millis(1);

    /// Works at these distances, with this many operations on namespaces that begin or end.
    fn after(waits: &[(u64, u64)]) -> (IdlePolling, Time) {
        let mut now = Time::from_nanos(1);
        let mut patience = IdlePolling::new(now, MOST);
        work(&mut patience, &mut now, waits);
        (patience, now)
    }

    fn work(patience: &mut IdlePolling, now: &mut Time, waits: &[(u64, u64)]) {
        for (micros, operations) in waits {
            *now = *now + Duration::from_micros(*micros);
            patience.worked(*now, patience.operations + operations);
        }
    }

    fn looks_on_after(waits: &[(u64, u64)], micros: u64) -> bool {
        let (patience, now) = after(waits);
        patience.looks_on(now + Duration::from_micros(micros))
    }

    #[test]
    fn successive_single_reads_prolong_polling() {
        assert!(!looks_on_after(&[], 400));
        assert!(looks_on_after(&[(300, 1)], 400));
        assert!(looks_on_after(&[(300, 1), (5, 1), (5, 1)], 400));
    }

    #[test]
    fn rare_commands_do_not_prolong_polling() {
        assert!(!looks_on_after(&[(300, 1), (10_000, 1)], 60));
        assert!(looks_on_after(&[(300, 1), (10_000, 1)], 40));
    }

    #[test]
    fn keep_alive_does_not_prolong_polling() {
        assert!(!looks_on_after(&[(300, 0), (300, 0), (300, 0)], 60));
    }

    #[test]
    fn under_contention_it_does_not_poll_for_bursts() {
        let looks_on =
            |patience: &IdlePolling, now: Time| patience.looks_on(now + Duration::from_micros(400));
        let (mut patience, mut now) = after(&[(300, 3)]);
        patience.gave_way(now, LEAST - Duration::from_nanos(1));
        assert!(looks_on(&patience, now));
        patience.gave_way(now, LEAST);
        assert!(!looks_on(&patience, now));
        assert!(patience.looks_on(now + Duration::from_micros(40)));
        work(&mut patience, &mut now, &[(300, 3)].repeat(SHY as usize));
        assert!(!looks_on(&patience, now));
        work(&mut patience, &mut now, &[(300, 1)]);
        assert!(looks_on(&patience, now));
        patience.gave_way(now, LEAST);
        assert!(looks_on(&patience, now));
    }

    #[test]
    fn beside_a_computing_thread_it_sleeps_at_once() {
        let (mut patience, mut now) = after(&[(300, 1)]);
        for _ in 0..2 {
            assert!(patience.looks_on(now));
            patience.gave_way(now, Duration::from_millis(2));
        }
        assert!(!patience.looks_on(now));
        work(&mut patience, &mut now, &[(50_000, 1)]);
        assert!(patience.looks_on(now));
    }

    #[test]
    fn a_burst_makes_it_impatient_in_the_end() {
        let burst = [(300, 1)].into_iter().chain([(1, 1); 64]);
        assert!(!looks_on_after(&burst.collect::<Vec<_>>(), 400));
    }

    proptest! {
        #[test]
        fn it_never_waits_for_longer_than_it_may(
            waits in prop::collection::vec((0..5_000_u64, 0..5_u64), 0..50)
        ) {
            let (patience, now) = after(&waits);
            prop_assert!(!patience.looks_on(now + MOST));
            prop_assert!(patience.looks_on(now + (LEAST - Duration::from_nanos(1))));
        }
    }
}

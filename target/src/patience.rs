//! How long a core that has nothing to do looks for work before it sleeps.
//!
//! To be woken costs more than a short wait: a host that reads one block after the other would pay for it with every read.
//! So a core looks on for as long as work with namespaces lately took to come, if that is not too long. Commands that
//! merely say that a host is still there do not keep it awake, and neither do several operations at once: who is woken
//! by the first of them finds others done as well, and hosts that share the processor need it more. Hosts that send
//! several at once will do so again.

use std::time::Duration;

use rdma::Time;

/// It looks on for so long after anything, since a wake-up takes about as long.
const LEAST: Duration = Duration::from_micros(50);

/// With more operations than this under way it does not look on: one, and another whose response is on its way.
const FEW: usize = 2;

/// After several operations at once so many others have to come before it learns from them.
const SHY: u32 = 64;

/// How long to look on, learnt from when work came.
#[derive(Debug)]
pub(crate) struct Patience {
    most: Duration,
    window: Duration,
    last_work: Time,
    /// Operations on namespaces so far.
    operations: u64,
    /// Turns with operations after which it learns again.
    shy: u32,
}

impl Patience {
    /// Of a core that looks on for `most` at the most.
    pub(crate) fn new(now: Time, most: Duration) -> Self {
        Self { most, window: LEAST.min(most), last_work: now, operations: 0, shy: 0 }
    }

    /// There was work; so many operations on namespaces have begun and ended so far.
    pub(crate) fn worked(&mut self, now: Time, operations: u64) {
        match operations - self.operations {
            0 => {}
            // One that began and ended at once counts twice.
            1 | 2 if self.shy == 0 => self.learn(now - self.last_work),
            1 | 2 => self.shy -= 1,
            _ => {
                self.shy = SHY;
                self.window = LEAST.min(self.most);
            }
        }
        self.operations = operations;
        self.last_work = now;
    }

    /// Whether to look on, while so many operations are under way.
    pub(crate) fn looks_on(&self, now: Time, under_way: usize) -> bool {
        let window = if under_way > FEW { LEAST.min(self.most) } else { self.window };
        now - self.last_work < window
    }

    /// Waits of less than twice the most count as short: what is shortened is also the time it takes to be woken.
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

    /// Works at these distances, with namespaces or not.
    fn after(waits: &[(u64, bool)]) -> (Patience, Time) {
        let waits: Vec<_> = waits.iter().map(|&(micros, one)| (micros, u64::from(one))).collect();
        after_several(&waits)
    }

    /// Works at these distances, with so many operations that begin or end.
    fn after_several(waits: &[(u64, u64)]) -> (Patience, Time) {
        let mut now = Time::from_nanos(1);
        let mut patience = Patience::new(now, MOST);
        let mut operations = 0;
        for (micros, begun_or_ended) in waits {
            now = now + Duration::from_micros(*micros);
            operations += begun_or_ended;
            patience.worked(now, operations);
        }
        (patience, now)
    }

    fn looks_on_after(waits: &[(u64, bool)], micros: u64) -> bool {
        let (patience, now) = after(waits);
        patience.looks_on(now + Duration::from_micros(micros), 1)
    }

    #[test]
    fn it_waits_for_reads_that_come_one_after_the_other() {
        assert!(!looks_on_after(&[], 400));
        assert!(looks_on_after(&[(300, true)], 400));
        assert!(looks_on_after(&[(300, true), (5, true), (5, true)], 400));
    }

    #[test]
    fn it_does_not_wait_for_what_comes_seldom() {
        assert!(!looks_on_after(&[(300, true), (10_000, true)], 60));
        assert!(looks_on_after(&[(300, true), (10_000, true)], 40));
    }

    #[test]
    fn hosts_that_are_merely_there_do_not_keep_it_awake() {
        assert!(!looks_on_after(&[(300, false), (300, false), (300, false)], 60));
    }

    #[test]
    fn several_operations_at_once_do_not_keep_it_awake() {
        let (patience, now) = after(&[(300, true)]);
        assert!(!patience.looks_on(now + Duration::from_micros(60), FEW + 1));
        assert!(patience.looks_on(now + Duration::from_micros(40), FEW + 1));
    }

    #[test]
    fn hosts_that_send_several_at_once_make_it_shy() {
        let looks_on = |waits: &[(u64, u64)]| {
            let (patience, now) = after_several(waits);
            patience.looks_on(now + Duration::from_micros(400), 0)
        };
        assert!(looks_on(&[(300, 2)]));
        assert!(!looks_on(&[(300, 2), (300, 3)]));
        assert!(!looks_on(&[(300, 2), (300, 3), (300, 1)]));
        assert!(looks_on(&[[(300, 3)].repeat(3), [(300, 1)].repeat(SHY as usize + 1)].concat()));
    }

    #[test]
    fn a_burst_makes_it_impatient_in_the_end() {
        let burst = [(300, true)].into_iter().chain([(1, true); 64]);
        assert!(!looks_on_after(&burst.collect::<Vec<_>>(), 400));
    }

    proptest! {
        #[test]
        fn it_never_waits_for_longer_than_it_may(
            waits in prop::collection::vec((0..5_000_u64, any::<bool>()), 0..50)
        ) {
            let (patience, now) = after(&waits);
            for under_way in 0..2 * FEW {
                prop_assert!(!patience.looks_on(now + MOST, under_way));
                prop_assert!(patience.looks_on(now + (LEAST - Duration::from_nanos(1)), under_way));
            }
        }
    }
}

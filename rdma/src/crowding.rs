//! Whether a thread that looks for work again and again stands in the way of others.

use std::time::Duration;

use crate::Time;

/// Others that kept the processor for so long compute. Who merely looks, too, gives it back much sooner.
const LONG: Duration = Duration::from_millis(1);
/// It is not tried again for so many times the time that it cost.
const REPENTANCE: u32 = 16;
/// For so many times the time that it cost once it is suspected to happen again: longer than it is not tried.
const SUSPICION: u32 = 2 * REPENTANCE;
/// What takes longer is not somebody's share of the processor: a debugger, or a machine that stood still.
const LONGEST: Duration = Duration::from_millis(100);

/// What a thread that offers its processor to others between two looks has learnt from them.
///
/// Threads that all look and give way share a processor well: each has it again before long. One that computes keeps it
/// for milliseconds, which whoever gave it away has to wait for. Then it is better to sleep: who is woken has the processor
/// at once, having used so little of it.
#[derive(Clone, Copy, Debug)]
pub struct Crowding {
    until: Time,
    /// The processor was kept for long once; if it is again before then, somebody computes. Once may be a pause of the
    /// whole machine.
    suspected_until: Time,
}

impl Crowding {
    /// Of a thread that has not given way yet.
    pub const NONE: Self = Self { until: Time::ZERO, suspected_until: Time::ZERO };

    /// Between two looks, until `now`, others had the processor for `time`.
    pub fn gave_way(&mut self, now: Time, time: Duration) {
        if time < LONG {
            return;
        }
        let time = time.min(LONGEST);
        if now < self.suspected_until {
            self.until = now + time * REPENTANCE;
        }
        self.suspected_until = now + time * SUSPICION;
    }

    /// Whether to sleep rather than to look on.
    pub fn is_felt(&self, now: Time) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_processor_again_soon_looks_on() {
        let (mut crowding, now) = (Crowding::NONE, Time::from_nanos(1));
        assert!(!crowding.is_felt(now));
        for _ in 0..100 {
            crowding.gave_way(now, LONG - Duration::from_nanos(1));
            assert!(!crowding.is_felt(now));
        }
    }

    #[test]
    fn a_pause_of_the_machine_is_not_taken_for_one_that_computes() {
        let (mut crowding, now) = (Crowding::NONE, Time::from_nanos(1));
        crowding.gave_way(now, LONG);
        assert!(!crowding.is_felt(now));
        let much_later = now + LONG * SUSPICION;
        crowding.gave_way(much_later, LONG);
        assert!(!crowding.is_felt(much_later));
        crowding.gave_way(much_later, LONG);
        assert!(crowding.is_felt(much_later));
    }

    #[test]
    fn what_stood_still_for_hours_looks_on_before_long() {
        let (mut crowding, now) = (Crowding::NONE, Time::from_nanos(1));
        for _ in 0..2 {
            crowding.gave_way(now, Duration::from_secs(7200));
        }
        assert!(!crowding.is_felt(now + Duration::from_secs(2)));
    }

    #[test]
    fn giving_way_to_one_that_computes_takes_a_small_part_of_the_time() {
        let (mut crowding, mut now) = (Crowding::NONE, Time::from_nanos(1));
        let (mut lost, began, slice) = (Duration::ZERO, now, Duration::from_millis(3));
        while now - began < Duration::from_secs(2) {
            if crowding.is_felt(now) {
                now = now + Duration::from_micros(20);
            } else {
                now = now + slice;
                lost += slice;
                crowding.gave_way(now, slice);
            }
        }
        assert!(lost > Duration::ZERO && lost * 12 < now - began, "{lost:?}");
    }
}

//! Whether a thread that looks for work again and again stands in the way of others.

use std::time::Duration;

use crate::Time;

/// Others that kept the processor for so long compute. Who merely looks, too, gives it back much
/// sooner.
const LONG: Duration = Duration::from_millis(1);
/// It is not tried again for so many times the time that it cost.
const BACKOFF_FACTOR: u32 = 16;
/// For so many times the time that it cost once it is suspected to happen again: longer than it is
/// not tried.
const CONFIRM_WINDOW_FACTOR: u32 = 2 * BACKOFF_FACTOR;
/// What takes longer is not somebody's share of the processor: a debugger, or a machine that stood
/// still.
const LONGEST: Duration = Duration::from_millis(100);

/// What a thread that offers its processor to others between two looks has learnt from them.
///
/// Threads that all look and give way share a processor well: each has it again before long. One
/// that computes keeps it for milliseconds, which whoever gave it away has to wait for. Then it is
/// better to sleep: who is woken has the processor at once, having used so little of it.
#[derive(Clone, Copy, Debug)]
pub struct CpuContention {
    until: Time,
    /// The processor was kept for long once; if it is again before then, somebody computes. Once
    /// may be a pause of the whole machine.
    suspected_until: Time,
}

impl CpuContention {
    /// Of a thread that has not given way yet.
    pub const NONE: Self = Self { until: Time::ZERO, suspected_until: Time::ZERO };

    /// Between two looks, until `now`, others had the processor for `time`.
    pub fn gave_way(&mut self, now: Time, time: Duration) {
        if time < LONG {
            return;
        }
        let time = time.min(LONGEST);
        if now < self.suspected_until {
            self.until = now + time * BACKOFF_FACTOR;
        }
        self.suspected_until = now + time * CONFIRM_WINDOW_FACTOR;
    }

    /// Whether to sleep rather than to look on.
    pub fn should_sleep(&self, now: Time) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_the_processor_again_soon_looks_on() {
        let (mut contention, now) = (CpuContention::NONE, Time::from_nanos(1));
        assert!(!contention.should_sleep(now));
        for _ in 0..100 {
            contention.gave_way(now, LONG - Duration::from_nanos(1));
            assert!(!contention.should_sleep(now));
        }
    }

    #[test]
    fn a_pause_of_the_machine_is_not_taken_for_one_that_computes() {
        let (mut contention, now) = (CpuContention::NONE, Time::from_nanos(1));
        contention.gave_way(now, LONG);
        assert!(!contention.should_sleep(now));
        let much_later = now + LONG * CONFIRM_WINDOW_FACTOR;
        contention.gave_way(much_later, LONG);
        assert!(!contention.should_sleep(much_later));
        contention.gave_way(much_later, LONG);
        assert!(contention.should_sleep(much_later));
    }

    #[test]
    fn what_stood_still_for_hours_looks_on_before_long() {
        let (mut contention, now) = (CpuContention::NONE, Time::from_nanos(1));
        for _ in 0..2 {
            contention.gave_way(now, Duration::from_secs(7200));
        }
        assert!(!contention.should_sleep(now + Duration::from_secs(2)));
    }

    #[test]
    fn giving_way_to_one_that_computes_takes_a_small_part_of_the_time() {
        let (mut contention, mut now) = (CpuContention::NONE, Time::from_nanos(1));
        let (mut lost, began, slice) = (Duration::ZERO, now, Duration::from_millis(3));
        while now - began < Duration::from_secs(2) {
            if contention.should_sleep(now) {
                now = now + Duration::from_micros(20);
            } else {
                now = now + slice;
                lost += slice;
                contention.gave_way(now, slice);
            }
        }
        assert!(lost > Duration::ZERO && lost * 12 < now - began, "{lost:?}");
    }
}

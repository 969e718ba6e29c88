//! Detection of other threads that need the processor of a polling thread.

use std::time::Duration;

use crate::Time;

/// Minimum time without the processor after a yield that counts as a computing thread. Another
/// polling thread yields much sooner.
const LONG: Duration = Duration::from_millis(1);
/// The thread sleeps instead of yielding for this many times the duration of a confirmed wait, so
/// that waits cost at most 1/17 of its time. A larger factor would lower that cost and delay the
/// return to polling.
const BACKOFF_FACTOR: u32 = 16;
/// A wait is confirmed by another wait within this many times its duration. It is longer than the
/// back-off, so that one long wait after the back-off is enough to start the next.
const CONFIRM_WINDOW_FACTOR: u32 = 2 * BACKOFF_FACTOR;
/// Longer waits count as this long, since a debugger or a suspended machine caused them.
const LONGEST: Duration = Duration::from_millis(100);

/// How long other threads held the processor when a polling thread yielded it.
///
/// Polling threads that all yield share a processor well: each gets it back soon. A computing
/// thread keeps it for milliseconds, for which the thread that yielded has to wait. Then sleeping
/// is better: a woken thread is scheduled immediately, since it has used little of the processor.
#[derive(Clone, Copy, Debug)]
pub struct CpuContention {
    until: Time,
    /// A long wait happened; another long wait before this time confirms that a thread computes. A
    /// single one may be a pause of the whole machine.
    suspected_until: Time,
}

impl CpuContention {
    /// The state of a thread that has not yielded yet.
    pub const NONE: Self = Self { until: Time::ZERO, suspected_until: Time::ZERO };

    /// Records that other threads had the processor for `time` until `now`, between two polls.
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

    /// Whether the thread should sleep at `now` rather than poll on.
    pub fn should_sleep(&self, now: Time) -> bool {
        now < self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_waits_cause_no_sleep() {
        let (mut contention, now) = (CpuContention::NONE, Time::from_nanos(1));
        assert!(!contention.should_sleep(now));
        for _ in 0..100 {
            contention.gave_way(now, LONG - Duration::from_nanos(1));
            assert!(!contention.should_sleep(now));
        }
    }

    #[test]
    fn one_long_wait_alone_causes_no_sleep() {
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
    fn a_pause_of_hours_causes_a_short_sleep() {
        let (mut contention, now) = (CpuContention::NONE, Time::from_nanos(1));
        for _ in 0..2 {
            contention.gave_way(now, Duration::from_secs(7200));
        }
        assert!(!contention.should_sleep(now + Duration::from_secs(2)));
    }

    #[test]
    fn waits_for_a_computing_thread_are_rare() {
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

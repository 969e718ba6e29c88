//! The estimate of the round-trip time.

use core::time::Duration;

use crate::Time;

/// Time after which something is sent again before the first sample.
const RETRANSMIT_UNKNOWN: Duration = Duration::from_millis(20);

/// The least time before something is sent again: processes that share cores are silent for that
/// long.
const RETRANSMIT_FLOOR: Duration = Duration::from_millis(5);

/// The least time after which an answer is late: no timer of ours is finer.
const LATE_FLOOR: Duration = Duration::from_micros(100);

/// Least time between two reductions of a window for marks before the first sample.
const MARKS_UNKNOWN: Duration = Duration::from_millis(1);

/// Least time between two reductions of a window for marks: a queue pair does not send
/// notifications more often.
const MARKS_FLOOR: Duration = Duration::from_micros(50);

/// The shortest round trip is the least of this long, and of up to twice as long.
const LEAST_PERIOD: Duration = Duration::from_secs(10);

/// The round-trip time to one endpoint: RFC 6298's estimator, and the shortest of late.
///
/// Only packets that were sent once are samples (Karn): the acknowledgement of a packet that was
/// sent again may be for either copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    estimate: Option<Estimate>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
    /// The shortest in this period, and in the one before.
    least: Duration,
    older_least: Duration,
    period_began: Time,
}

impl RoundTrip {
    /// The state before the first sample.
    pub const fn new() -> Self {
        Self { estimate: None }
    }

    /// A packet that was sent once was acknowledged after `sample`.
    pub(crate) fn sample(&mut self, now: Time, sample: Duration) {
        let Some(estimate) = &mut self.estimate else {
            self.estimate = Some(Estimate {
                smoothed: sample,
                variation: sample / 2,
                least: sample,
                older_least: sample,
                period_began: now,
            });
            return;
        };
        estimate.variation = estimate.variation / 4 * 3 + estimate.smoothed.abs_diff(sample) / 4;
        estimate.smoothed = estimate.smoothed / 8 * 7 + sample / 8;
        if now - estimate.period_began >= LEAST_PERIOD {
            (estimate.older_least, estimate.least) = (estimate.least, sample);
            estimate.period_began = now;
        }
        estimate.least = estimate.least.min(sample);
    }

    /// The smoothed round-trip time, once there is a sample.
    pub fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.smoothed)
    }

    /// The time in which a window is reduced for marks at most once: a round trip, or two
    /// notifications of one queue pair.
    pub(crate) fn of_marks(&self) -> Duration {
        self.smoothed().unwrap_or(MARKS_UNKNOWN).max(MARKS_FLOOR)
    }

    /// The shortest round-trip time of the last 10 to 20 s, once there is a sample.
    pub fn least(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.least.min(estimate.older_least))
    }

    /// Time after which an answer that the peer gives immediately is late; without a sample, 1 ms.
    pub(crate) fn late_after(&self) -> Duration {
        self.estimate.map_or(Duration::from_millis(1), |estimate| {
            let late = estimate.smoothed + estimate.variation * 4;
            late.max(estimate.smoothed / 2 * 3).max(LATE_FLOOR)
        })
    }

    /// How long to wait for an acknowledgement before something is sent again. Where round trips
    /// hardly vary, a packet that waits its turn behind others is not late yet.
    pub(crate) fn retransmit_after(&self) -> Duration {
        self.estimate.map_or(RETRANSMIT_UNKNOWN, |estimate| {
            let late = estimate.smoothed + (estimate.variation * 4).max(estimate.smoothed / 8);
            late.max(RETRANSMIT_FLOOR)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn the_round_trip_is_smoothed() {
        let mut round_trip = RoundTrip::new();
        assert_eq!(round_trip.retransmit_after(), RETRANSMIT_UNKNOWN);
        for _ in 0..100 {
            round_trip.sample(Time::ZERO, 20 * MILLISECOND);
        }
        assert_eq!(round_trip.smoothed().map(|time| time.as_millis()), Some(20));
        assert!(round_trip.retransmit_after() < 25 * MILLISECOND);
        round_trip.sample(Time::ZERO, 100 * MILLISECOND);
        assert!(round_trip.retransmit_after() > 60 * MILLISECOND);
    }

    /// A path that has become longer is known to be so 20 s later.
    #[test]
    fn the_shortest_round_trip_is_forgotten() {
        let mut round_trip = RoundTrip::new();
        round_trip.sample(Time::ZERO, MILLISECOND);
        let mut now = Time::ZERO;
        for second in 1..=21 {
            now = now + Duration::from_secs(1);
            round_trip.sample(now, 3 * MILLISECOND);
            if second < 10 {
                assert_eq!(round_trip.least(), Some(MILLISECOND), "after {second} s");
            }
        }
        assert_eq!(round_trip.least(), Some(3 * MILLISECOND));
    }
}

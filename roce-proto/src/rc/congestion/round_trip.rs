//! Estimation of the round-trip time.

use core::time::Duration;

use crate::Time;

/// Retransmission timeout before the first sample.
const RETRANSMIT_UNKNOWN: Duration = Duration::from_millis(20);

/// Minimum retransmission timeout: processes that share cores may be silent for that long.
const RETRANSMIT_FLOOR: Duration = Duration::from_millis(5);

/// Minimum time after which an answer is late: timers are no finer.
const LATE_FLOOR: Duration = Duration::from_micros(100);

/// Minimum time between two reductions of a window for marks, before the first sample.
const MARKS_UNKNOWN: Duration = Duration::from_millis(1);

/// Minimum time between two reductions of a window for marks: the interval of a queue pair's
/// congestion notifications.
const MARKS_FLOOR: Duration = Duration::from_micros(50);

/// The minimum round trip is taken over this period and the preceding one.
const LEAST_PERIOD: Duration = Duration::from_secs(10);

/// The round-trip time to an endpoint: the estimator of RFC 6298, and the recent minimum.
///
/// Only packets that were sent once give samples (Karn's algorithm), since the acknowledgement of a
/// retransmitted packet may be for either copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundTrip {
    estimate: Option<Estimate>,
}

#[derive(Clone, Copy, Debug)]
struct Estimate {
    smoothed: Duration,
    variation: Duration,
    /// Minimum in this period, and in the preceding one.
    least: Duration,
    older_least: Duration,
    period_began: Time,
}

impl RoundTrip {
    /// The state before the first sample.
    pub const fn new() -> Self {
        Self { estimate: None }
    }

    /// Adds a sample: the time from sending to acknowledgement of a packet that was sent once.
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

    /// The smoothed round-trip time; `None` before the first sample.
    pub fn smoothed(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.smoothed)
    }

    /// Minimum time between two reductions of a window for marks: a round trip, but at least the
    /// interval of congestion notifications.
    pub(crate) fn of_marks(&self) -> Duration {
        self.smoothed().unwrap_or(MARKS_UNKNOWN).max(MARKS_FLOOR)
    }

    /// The minimum round-trip time of the last 10 to 20 s; `None` before the first sample.
    pub fn least(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.least.min(estimate.older_least))
    }

    /// Time after which an immediate answer of the peer is late; 1 ms before the first sample.
    pub(crate) fn late_after(&self) -> Duration {
        self.estimate.map_or(Duration::from_millis(1), |estimate| {
            let late = estimate.smoothed + estimate.variation * 4;
            late.max(estimate.smoothed / 2 * 3).max(LATE_FLOOR)
        })
    }

    /// The retransmission timeout. It exceeds the smoothed round trip by at least an eighth, so
    /// that a packet queued behind others is not considered late.
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

//! Pacing: distributes the packets of a window over the round trip, so that a queue on the path
//! need not hold them all.

use core::time::Duration;

use super::{FULL_PACKET, RoundTrip};
use crate::Time;

/// Minimum round trip for pacing: below it, acknowledgements distribute packets as finely as
/// timers.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_micros(200);

/// Duration of a burst, at the pace; a burst is also limited to a quarter of the window. Half of it
/// would wake a sender over a path of 10 ms twice as often.
const BURST: Duration = Duration::from_micros(500);

/// A token bucket: packets take tokens equal to their cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    tokens: u64,
    filled: Time,
}

/// A rate, and the maximum burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    bytes_per_second: u64,
    burst: u64,
}

impl Pace {
    /// Pace of a window after a loss: 1.25 windows per smoothed round trip. `None` if the round
    /// trip is too short for pacing.
    pub(crate) fn after_loss(window: u64, round_trip: &RoundTrip) -> Option<Self> {
        let smoothed = round_trip.smoothed().filter(|time| *time >= SHORTEST_ROUND_TRIP)?;
        Self::new(window, 1_250, smoothed)
    }

    /// Pace of a window in slow start: two windows per round trip. `None` on short paths.
    pub(crate) fn of_slow_start(window: u64, round_trip: &RoundTrip) -> Option<Self> {
        Self::is_set(round_trip).then(|| Self::new(window, 2_000, round_trip.smoothed()?))?
    }

    /// Whether packets are paced before the first loss: if the minimum round trip is long enough,
    /// regardless of later queueing.
    pub(crate) fn is_set(round_trip: &RoundTrip) -> bool {
        round_trip.least().is_some_and(|time| time >= SHORTEST_ROUND_TRIP)
    }

    fn new(window: u64, thousandths: u64, round_trip: Duration) -> Option<Self> {
        let nanos = round_trip.as_nanos();
        let rate = u128::from(window) * u128::from(thousandths) * 1_000_000 / nanos;
        let bytes_per_second = u64::try_from(rate).ok()?.max(1);
        let burst = u64::try_from(rate * BURST.as_nanos() / 1_000_000_000).ok()?;
        Some(Self { bytes_per_second, burst: burst.min(window / 4).max(2 * FULL_PACKET) })
    }

    /// The pace with bursts of at least `bytes`.
    pub(crate) fn with_burst_of(self, bytes: u64) -> Self {
        Self { burst: self.burst.max(bytes), ..self }
    }

    /// Maximum number of bytes in one burst.
    pub(crate) const fn burst(self) -> u64 {
        self.burst
    }
}

impl Pacer {
    /// A bucket that is full at its first use.
    pub(crate) const fn new() -> Self {
        Self { tokens: 0, filled: Time::ZERO }
    }

    /// Number of bytes that may be sent now, as [`datagram_cost`](crate::rc::datagram_cost())
    /// counts them.
    pub(crate) fn tokens(&mut self, now: Time, pace: Pace) -> u64 {
        let nanos = (now - self.filled).as_nanos();
        let added = u128::from(pace.bytes_per_second) * nanos / 1_000_000_000;
        // Otherwise `filled` is unchanged, so that fractions of a byte are not lost.
        if added > 0 {
            self.filled = now;
            let added = u64::try_from(added).unwrap_or(u64::MAX);
            self.tokens = self.tokens.saturating_add(added).min(pace.burst);
        }
        self.tokens
    }

    /// Takes tokens for packets that were sent, paced or not.
    pub(crate) const fn take(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }

    /// Time at which there are `bytes` tokens, or the bucket is full.
    pub(crate) fn ready_at(&self, bytes: u64, pace: Pace) -> Time {
        let missing = bytes.min(pace.burst).saturating_sub(self.tokens);
        let nanos = (u128::from(missing) * 1_000_000_000).div_ceil(pace.bytes_per_second.into());
        self.filled + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(micros: u64) -> RoundTrip {
        let mut round_trip = RoundTrip::new();
        round_trip.sample(Time::ZERO, Duration::from_micros(micros));
        round_trip
    }

    #[test]
    fn short_round_trips_are_not_paced() {
        for (micros, paced) in [(50, false), (199, false), (200, true), (10_000, true)] {
            let round_trip = round_trip(micros);
            assert_eq!(Pace::after_loss(100 * FULL_PACKET, &round_trip).is_some(), paced);
            assert_eq!(Pace::of_slow_start(100 * FULL_PACKET, &round_trip).is_some(), paced);
        }
        // What waits in buffers behind a short path.
        let mut round_trip = round_trip(50);
        for _ in 0..100 {
            round_trip.sample(Time::ZERO, Duration::from_millis(5));
        }
        assert_eq!(Pace::of_slow_start(100 * FULL_PACKET, &round_trip), None);
        assert!(Pace::after_loss(100 * FULL_PACKET, &round_trip).is_some());
    }

    #[test]
    fn bursts_are_bounded() {
        let window = 320 * FULL_PACKET;
        for (micros, burst) in [(1_000, window / 4), (10_000, window / 16)] {
            let pace = Pace::after_loss(window, &round_trip(micros)).unwrap();
            assert_eq!(pace.burst(), burst, "{micros} us");
        }
        let pace = Pace::after_loss(FULL_PACKET, &round_trip(1_000)).unwrap();
        assert_eq!(pace.burst(), 2 * FULL_PACKET);
    }

    /// Packets leave at the rate, though each waits until it may.
    #[test]
    fn packets_leave_at_the_rate() {
        let window = 80 * FULL_PACKET;
        let pace = Pace::after_loss(window, &round_trip(1_000)).unwrap();
        let (mut pacer, start) = (Pacer::new(), Time::from_nanos(1_000_000_000));
        let mut now = start;
        let mut packets = 0;
        while now - start < Duration::from_millis(100) {
            if pacer.tokens(now, pace) >= FULL_PACKET {
                pacer.take(FULL_PACKET);
                packets += 1;
            } else {
                let ready = pacer.ready_at(FULL_PACKET, pace);
                assert!(ready > now, "waiting brings it on");
                now = ready;
            }
        }
        // 100 packets in a round trip, and a burst at first.
        assert!((10_000..=10_021).contains(&packets), "{packets}");
    }
}

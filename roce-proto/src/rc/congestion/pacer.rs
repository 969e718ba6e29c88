//! Spreads a window over the round trip, so that a queue on the way need not hold all of it.

use core::time::Duration;

use super::{FULL_PACKET, RoundTrip};
use crate::Time;

/// Round trips below this are not paced: acknowledgements spread packets as finely as timers do.
const SHORTEST_ROUND_TRIP: Duration = Duration::from_micros(200);

/// Packets of this time may leave in one burst, as far as they are no more than a quarter of the
/// window. Halved, a sender over a path of 10 ms is woken twice as often.
const BURST: Duration = Duration::from_micros(500);

/// A token bucket, from which packets take as many tokens as they cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    tokens: u64,
    filled: Time,
}

/// How fast packets are to leave, and how many of them in one burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    bytes_per_second: u64,
    burst: u64,
}

impl Pace {
    /// Pace of a window that holds packets up after a loss: 1.25 windows in each smoothed round
    /// trip. `None` where acknowledgements alone set the pace.
    pub(crate) fn after_loss(window: u64, round_trip: &RoundTrip) -> Option<Self> {
        let smoothed = round_trip.smoothed().filter(|time| *time >= SHORTEST_ROUND_TRIP)?;
        Self::new(window, 1_250, smoothed)
    }

    /// Pace of a window that doubles each round trip: two windows.
    pub(crate) fn of_slow_start(window: u64, round_trip: &RoundTrip) -> Option<Self> {
        Self::is_set(round_trip).then(|| Self::new(window, 2_000, round_trip.smoothed()?))?
    }

    /// Whether packets are paced though none was lost. What passes quickly while nothing else is on
    /// the way does not, however long packets wait in buffers later.
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

    /// The pace with bursts of at least this many bytes.
    pub(crate) fn with_burst_of(self, bytes: u64) -> Self {
        Self { burst: self.burst.max(bytes), ..self }
    }

    /// The most bytes that leave in one burst.
    pub(crate) const fn burst(self) -> u64 {
        self.burst
    }
}

impl Pacer {
    /// A bucket that is full when it is first asked.
    pub(crate) const fn new() -> Self {
        Self { tokens: 0, filled: Time::ZERO }
    }

    /// How many bytes may leave now, as [`datagram_cost`](crate::rc::datagram_cost()) counts them.
    pub(crate) fn tokens(&mut self, now: Time, pace: Pace) -> u64 {
        let nanos = (now - self.filled).as_nanos();
        let added = u128::from(pace.bytes_per_second) * nanos / 1_000_000_000;
        // Parts of a byte stay in the clock.
        if added > 0 {
            self.filled = now;
            let added = u64::try_from(added).unwrap_or(u64::MAX);
            self.tokens = self.tokens.saturating_add(added).min(pace.burst);
        }
        self.tokens
    }

    /// Packets left, paced or not.
    pub(crate) const fn take(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_sub(bytes);
    }

    /// When there will be `bytes` tokens, or a full bucket.
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

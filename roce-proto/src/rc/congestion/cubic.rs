//! CUBIC (RFC 9438): after a loss, the window returns to its former size within a time that does
//! not depend on the round trip.

use core::time::Duration;

use super::{FULL_PACKET, LARGEST_WINDOW, MarkedShare, Pace, RoundTrip};
use crate::Time;

/// Minimum window: RFC 9438, 4.9.
const SMALLEST: u64 = 2 * FULL_PACKET;

/// Initial window of slow start: more than the packets of a READ of 128 KiB. Half of it takes one
/// more round trip to reach any rate.
const INITIAL: u64 = 64 * FULL_PACKET;

/// Maximum time from the plateau for which the cubic function is computed; by then the window has
/// grown by 86,400 packets, more than the largest window.
const FARTHEST_MILLISECONDS: i64 = 60_000;

/// The congestion window of the network.
///
/// Fast Convergence (RFC 9438, 4.7) is not implemented.
#[derive(Clone, Debug)]
pub(crate) enum Cubic {
    /// The network has lost no packet; the window is unlimited while [`Halving`](super::Halving)
    /// determines the receiver's capacity.
    Unlimited,
    /// The network has lost no packet: the window doubles per round trip (4.10).
    SlowStart { limit: u64 },
    /// The network has lost or marked packets.
    Reduced(CubicGrowth),
}

/// Growth of a window after a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CubicGrowth {
    limit: u64,
    /// The window at the last loss: `W_max`.
    plateau: u64,
    /// The window that AIMD with the same average would have reached: `W_est`.
    friendly: u64,
    began: Time,
    /// Time from the reduction to the plateau: `K`.
    plateau_after_milliseconds: i64,
}

impl Cubic {
    pub(crate) const fn slow_start() -> Self {
        Self::SlowStart { limit: INITIAL }
    }

    pub(crate) const fn window(&self) -> u64 {
        match *self {
            Self::Unlimited => LARGEST_WINDOW,
            Self::SlowStart { limit } | Self::Reduced(CubicGrowth { limit, .. }) => limit,
        }
    }

    /// The pace of packets; `unlimited` is the window in use while this one is unlimited. `None`
    /// for no pacing.
    pub(crate) fn pace(&self, round_trip: &RoundTrip, unlimited: u64) -> Option<Pace> {
        match *self {
            Self::Unlimited => Pace::of_slow_start(unlimited, round_trip),
            Self::SlowStart { limit } => Pace::of_slow_start(limit, round_trip),
            Self::Reduced(CubicGrowth { limit, .. }) => Pace::after_loss(limit, round_trip),
        }
    }

    /// Grows the window after packets of cost `bytes` were acknowledged, if it had held back
    /// packets.
    pub(crate) fn on_ack(&mut self, now: Time, bytes: u64, round_trip: &RoundTrip) {
        match self {
            Self::Unlimited => {}
            Self::SlowStart { limit } => *limit = (*limit + bytes).min(LARGEST_WINDOW),
            Self::Reduced(growth) => {
                growth.advance(now, bytes, round_trip.smoothed().unwrap_or_default());
            }
        }
    }

    /// Reduces the window after a loss in the network; `used` is the window in use.
    pub(crate) fn on_loss(&mut self, now: Time, used: u64) {
        // RFC 9438, 4.6: seven tenths are kept.
        *self = Self::Reduced(CubicGrowth::after_reduction(now, used, used / 10 * 7));
    }

    /// Reduces the window after marks; `share` is the average share of marked packets, in parts of
    /// [`MarkedShare::WHOLE`]. Half of this share of `used` is given up (RFC 8257, 3.4).
    pub(crate) fn on_mark(&mut self, now: Time, used: u64, share: u64) {
        let kept = used - used * share / (2 * MarkedShare::WHOLE);
        *self = Self::Reduced(CubicGrowth::after_reduction(now, used, kept));
    }
}

impl CubicGrowth {
    fn after_reduction(now: Time, used: u64, kept: u64) -> Self {
        let limit = kept.max(SMALLEST);
        // K is the cube root of (W_max - W) / C seconds, in packets and with C = 0.4.
        let cubed =
            u128::from(used.saturating_sub(limit)) * 2_500_000_000 / u128::from(FULL_PACKET);
        Self {
            limit,
            plateau: used,
            friendly: limit,
            began: now,
            plateau_after_milliseconds: cube_root(cubed),
        }
    }

    fn advance(&mut self, now: Time, bytes: u64, round_trip: Duration) {
        let target = self.at(now - self.began + round_trip).clamp(self.limit, self.limit / 2 * 3);
        let cubic = self.limit + (target - self.limit) * bytes.min(self.limit) / self.limit;
        // RFC 9438, 4.3: 0.53 packets in each round trip until the plateau, then one.
        let hundredths = if self.friendly < self.plateau { 53 } else { 100 };
        self.friendly += FULL_PACKET * bytes * hundredths / (100 * self.limit);
        self.limit = cubic.max(self.friendly).min(LARGEST_WINDOW);
    }

    /// `W_cubic` at `elapsed` after the reduction: the plateau plus 0.4 packets times the cube of
    /// the seconds since the plateau (negative before it).
    fn at(&self, elapsed: Duration) -> u64 {
        let elapsed = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        let from_plateau = elapsed
            .saturating_sub(self.plateau_after_milliseconds)
            .clamp(-FARTHEST_MILLISECONDS, FARTHEST_MILLISECONDS);
        let bytes = from_plateau.pow(3) / 10_000 * (FULL_PACKET as i64 * 4) / 1_000_000;
        self.plateau.saturating_add_signed(bytes)
    }
}

/// The largest integer whose cube is at most `cubed`.
fn cube_root(cubed: u128) -> i64 {
    let (mut low, mut high) = (0_i64, FARTHEST_MILLISECONDS);
    while low < high {
        let middle = (low + high + 1) / 2;
        if middle.pow(3) as u128 <= cubed {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(time: Duration) -> RoundTrip {
        let mut round_trip = RoundTrip::new();
        round_trip.sample(Time::ZERO, time);
        round_trip
    }

    #[test]
    fn cube_roots_are_rounded_down() {
        for (cubed, root) in [(0, 0), (1, 1), (7, 1), (8, 2), (26, 2), (27, 3), (1 << 60, 60_000)] {
            assert_eq!(cube_root(cubed), root, "{cubed}");
        }
        assert_eq!(cube_root((1_u128 << 36) + 1), 1 << 12);
    }

    #[test]
    fn it_is_unlimited_until_a_loss() {
        let mut cubic = Cubic::Unlimited;
        assert_eq!(cubic.window(), LARGEST_WINDOW);
        cubic.on_ack(Time::ZERO, FULL_PACKET, &RoundTrip::new());
        assert_eq!(cubic.window(), LARGEST_WINDOW);
        cubic.on_loss(Time::ZERO, 100 * FULL_PACKET);
        assert_eq!(cubic.window(), 70 * FULL_PACKET);
    }

    /// Growth from 700 packets to 1,000 takes the cube root of 300 / 0.4 seconds, 9.1 s, and to one
    /// packet less 1.4 s less. From 70 packets of a short round trip AIMD is faster: 55 round trips
    /// to 99.
    #[test]
    fn it_returns_to_the_place_of_the_loss() {
        for (packets, round_trip_ms, least_ms, most_ms) in
            [(1000, 100, 7_000, 8_500), (100, 1, 45, 70)]
        {
            let mut cubic = Cubic::Unlimited;
            let round_trip = round_trip(Duration::from_millis(round_trip_ms));
            let mut now = Time::from_nanos(1_000_000_000);
            let start = now;
            cubic.on_loss(now, packets * FULL_PACKET);
            while cubic.window() < (packets - 1) * FULL_PACKET {
                now = now + Duration::from_millis(round_trip_ms);
                for _ in 0..cubic.window() / FULL_PACKET {
                    cubic.on_ack(now, FULL_PACKET, &round_trip);
                }
            }
            let took = (now - start).as_millis();
            assert!((least_ms..most_ms).contains(&took), "{packets} packets: {took} ms");
        }
    }

    #[test]
    fn two_packets_remain() {
        let mut cubic = Cubic::Unlimited;
        let mut now = Time::ZERO;
        for _ in 0..50 {
            now = now + Duration::from_secs(1);
            let used = cubic.window();
            cubic.on_loss(now, used);
        }
        assert_eq!(cubic.window(), SMALLEST);
    }

    /// Neither a long pause nor the largest window overflows.
    #[test]
    fn extremes() {
        let mut cubic = Cubic::Unlimited;
        cubic.on_loss(Time::ZERO, LARGEST_WINDOW);
        let round_trip = round_trip(Duration::from_secs(3600));
        for seconds in [1, 1_000, 1_000_000, 10_000_000_000] {
            let now = Time::ZERO + Duration::from_secs(seconds);
            for _ in 0..100 {
                cubic.on_ack(now, LARGEST_WINDOW, &round_trip);
            }
            assert!((LARGEST_WINDOW / 2..=LARGEST_WINDOW).contains(&cubic.window()));
        }
    }
}

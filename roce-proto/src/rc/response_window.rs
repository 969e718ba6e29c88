//! The congestion window for RDMA READ responses from one endpoint.

use core::time::Duration;

use crate::Time;
use crate::rc::congestion::{Cubic, MarkedShare, Pacer, RoundTrip};
use crate::rc::read_budget::{Awaited, ChargePeriod, PERIOD, response_cost};

/// Congestion window for READ responses from one endpoint. The [`ReadBudget`](super::ReadBudget)
/// prevents responses from overflowing our receive buffer; this window prevents those of one peer
/// from overloading the network, which shows by lost responses and by responses with Congestion
/// Experienced. It doubles per round trip until then.
///
/// On long paths, responses that do not arrive count for longer than in the budget, since they may
/// still occupy the network.
#[derive(Clone, Debug)]
pub(super) struct ResponseWindow {
    control: Cubic,
    marks: MarkedShare,
    last_cut: Option<Time>,
    pacer: Pacer,
    awaited: Awaited,
    /// True if an RDMA READ was held back since half of the window was last free.
    limited: bool,
}

impl ResponseWindow {
    pub(super) const fn new() -> Self {
        Self {
            control: Cubic::slow_start(),
            marks: MarkedShare::new(),
            last_cut: None,
            pacer: Pacer::new(),
            awaited: Awaited::new(),
            limited: false,
        }
    }

    /// Number of response packets with `payload_bytes` each that may be requested, at most
    /// `wanted`. At least one if none is outstanding. All that arrived until `handled` was released
    /// before.
    pub(super) fn admits(
        &mut self,
        handled: Time,
        wanted: u32,
        payload_bytes: u32,
        round_trip: &RoundTrip,
    ) -> u32 {
        self.awaited.age(handled, period(round_trip));
        let used = self.awaited.bytes();
        let room = self.control.window().saturating_sub(used);
        let fitting = u32::try_from(room / response_cost(1, payload_bytes)).unwrap_or(u32::MAX);
        self.limited |= fitting < wanted;
        fitting.max(u32::from(used == 0)).min(wanted)
    }

    /// Whether the window was ever reduced.
    pub(super) const fn has_lost(&self) -> bool {
        self.last_cut.is_some()
    }

    /// Number of the admitted `packets` that may be requested now, or the time at which some may
    /// be. Responses are paced by their requests, since a peer sends those of one request in a
    /// burst.
    pub(super) fn paced(
        &mut self,
        now: Time,
        packets: u32,
        payload_bytes: u32,
        round_trip: &RoundTrip,
    ) -> Result<u32, Time> {
        let Some(pace) = self.control.pace(round_trip, u64::MAX) else { return Ok(packets) };
        // The READs that may be outstanding, typically 16, must together request more than one
        // window.
        let pace = pace.with_burst_of(self.control.window() / 8);
        let wanted = response_cost(packets, payload_bytes);
        let tokens = self.pacer.tokens(now, pace);
        if tokens < wanted.min(pace.burst()) {
            return Err(self.pacer.ready_at(wanted, pace));
        }
        let fitting = tokens / response_cost(1, payload_bytes);
        Ok(u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, packets))
    }

    /// Time at which outstanding responses may stop counting.
    pub(super) fn forgets_at(&self, round_trip: &RoundTrip) -> Time {
        self.awaited.began() + period(round_trip)
    }

    /// Charges response packets that are requested now.
    pub(super) fn charge(&mut self, now: Time, packets: u32, payload_bytes: u32) -> ChargePeriod {
        let cost = response_cost(packets, payload_bytes);
        self.pacer.take(cost);
        self.awaited.charge(now, cost)
    }

    /// Releases response packets charged in `period` that are not expected any longer.
    pub(super) fn release(&mut self, packets: u32, payload_bytes: u32, period: ChargePeriod) {
        self.awaited.release(response_cost(packets, payload_bytes), period);
    }

    /// Releases a response that arrived, and grows the window if it had held back RDMA READs.
    pub(super) fn came(
        &mut self,
        now: Time,
        payload_bytes: u32,
        period: ChargePeriod,
        round_trip: &RoundTrip,
    ) {
        self.release(1, payload_bytes, period);
        self.marks.count(1);
        if self.limited {
            self.control.on_ack(now, response_cost(1, payload_bytes), round_trip);
            self.limited = self.awaited.bytes() >= self.control.window() / 2;
        }
    }

    /// Handles a response with Congestion Experienced.
    pub(super) fn marked(&mut self, now: Time, round_trip: &RoundTrip) {
        let round = round_trip.of_marks();
        let share = self.marks.mark(now, 1, round);
        if let Some(share) = share
            && self.last_cut.is_none_or(|cut| now - cut >= round)
        {
            self.last_cut = Some(now);
            let used = self.awaited.bytes().min(self.control.window());
            self.control.on_mark(now, used, share);
        }
    }

    /// Handles the loss of responses that were sent at `left` at the earliest.
    pub(super) fn lost(&mut self, now: Time, left: Time) {
        if self.last_cut.is_none_or(|cut| left >= cut) {
            self.last_cut = Some(now);
            let used = self.awaited.bytes().min(self.control.window());
            self.control.on_loss(now, used);
        }
    }
}

/// Time for which responses count: with path and queue full, the last one arrives two round trips
/// after its request.
fn period(round_trip: &RoundTrip) -> Duration {
    round_trip.smoothed().map_or(PERIOD, |smoothed| PERIOD.max(smoothed * 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: u32 = 4096;

    fn round_trip(time: Duration) -> RoundTrip {
        let mut round_trip = RoundTrip::new();
        round_trip.sample(Time::ZERO, time);
        round_trip
    }

    /// Asks for up to 60 packets.
    fn ask(window: &mut ResponseWindow, now: Time, path: &RoundTrip) -> (u32, ChargePeriod) {
        let packets = window.admits(now, 60, PAYLOAD, path);
        (packets, window.charge(now, packets, PAYLOAD))
    }

    #[test]
    fn it_shrinks_and_grows_again() {
        let (mut window, path) = (ResponseWindow::new(), round_trip(Duration::from_millis(1)));
        let mut now = Time::from_nanos(1_000_000_000);
        let (packets, period) = ask(&mut window, now, &path);
        assert_eq!(packets, 60);
        window.lost(now, now);
        assert_eq!(ask(&mut window, now, &path).0, 0, "more than the window is awaited");
        for _ in 0..60 {
            window.came(now, PAYLOAD, period, &path);
        }
        let (after_loss, mut period) = ask(&mut window, now, &path);
        assert_eq!(after_loss, 42);
        let mut awaited = after_loss;
        for _ in 0..100 {
            now = now + Duration::from_millis(1);
            for _ in 0..awaited {
                window.came(now, PAYLOAD, period, &path);
            }
            (awaited, period) = ask(&mut window, now, &path);
        }
        assert!((54..=60).contains(&awaited), "{awaited} packets");
    }

    /// A peer that withholds its responses is asked again, later on a long path.
    #[test]
    fn missing_responses_are_forgotten() {
        for (round_trip_ms, still_awaited_ms, forgotten_ms) in [(1, 9, 30), (50, 99, 250)] {
            let path = round_trip(Duration::from_millis(round_trip_ms));
            let mut window = ResponseWindow::new();
            let start = Time::from_nanos(1_000_000_000);
            let after = |milliseconds| start + Duration::from_millis(milliseconds);
            assert_eq!(ask(&mut window, start, &path).0, 60);
            window.lost(start, start);
            assert_eq!(ask(&mut window, after(still_awaited_ms), &path).0, 0);
            assert!(window.forgets_at(&path) <= after(forgotten_ms));
            assert_eq!(ask(&mut window, after(forgotten_ms), &path).0, 42);
        }
    }
}

//! How many RDMA READ responses may be on their way from one endpoint.

use core::time::Duration;

use crate::Time;
use crate::rc::congestion::{Cubic, MarkedShare, Pacer, RoundTrip};
use crate::rc::read_budget::{Awaited, ChargePeriod, PERIOD, response_cost};

/// The window of READ responses from one endpoint. The [`ReadBudget`](super::ReadBudget) keeps
/// responses from overrunning our receive buffer; this keeps those of one peer from overrunning the
/// network, which shows in responses that have to be asked for again, or that come with Congestion
/// Experienced. It doubles until then.
///
/// It forgets what does not come later than the budget does where the round trip is long: a network
/// is not less full because it takes long.
#[derive(Clone, Debug)]
pub(super) struct ResponseWindow {
    control: Cubic,
    marks: MarkedShare,
    last_cut: Option<Time>,
    pacer: Pacer,
    awaited: Awaited,
    /// A READ had to wait since half of the window was last free.
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

    /// How many response packets with `payload_bytes` each may be asked for, at most `wanted`. When
    /// nothing is awaited it is at least one. All that came until `handled` was counted.
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

    /// Whether responses were ever lost.
    pub(super) const fn has_lost(&self) -> bool {
        self.last_cut.is_some()
    }

    /// How many of `packets` that are admitted may be asked for now; or when some may be, since
    /// responses are paced: they leave the peer in one burst.
    pub(super) fn paced(
        &mut self,
        now: Time,
        packets: u32,
        payload_bytes: u32,
        round_trip: &RoundTrip,
    ) -> Result<u32, Time> {
        let Some(pace) = self.control.pace(round_trip, u64::MAX) else { return Ok(packets) };
        // The READs that may be outstanding, 16 as a rule, must ask for a window and more.
        let pace = pace.with_burst_of(self.control.window() / 8);
        let wanted = response_cost(packets, payload_bytes);
        let tokens = self.pacer.tokens(now, pace);
        if tokens < wanted.min(pace.burst()) {
            return Err(self.pacer.ready_at(wanted, pace));
        }
        let fitting = tokens / response_cost(1, payload_bytes);
        Ok(u32::try_from(fitting).unwrap_or(u32::MAX).clamp(1, packets))
    }

    /// When it forgets something, if it awaits anything.
    pub(super) fn forgets_at(&self, round_trip: &RoundTrip) -> Time {
        self.awaited.began() + period(round_trip)
    }

    /// Counts packets that are asked for now.
    pub(super) fn charge(&mut self, now: Time, packets: u32, payload_bytes: u32) -> ChargePeriod {
        let cost = response_cost(packets, payload_bytes);
        self.pacer.take(cost);
        self.awaited.charge(now, cost)
    }

    /// Packets that were charged in `period` are waited for no longer.
    pub(super) fn release(&mut self, packets: u32, payload_bytes: u32, period: ChargePeriod) {
        self.awaited.release(response_cost(packets, payload_bytes), period);
    }

    /// A packet that was charged in `period` came: the window grows if it had held READs up.
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

    /// A response came with Congestion Experienced.
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

    /// Responses are missing that were sent at `left` at the earliest.
    pub(super) fn lost(&mut self, now: Time, left: Time) {
        if self.last_cut.is_none_or(|cut| left >= cut) {
            self.last_cut = Some(now);
            let used = self.awaited.bytes().min(self.control.window());
            self.control.on_loss(now, used);
        }
    }
}

/// The last of the responses that fill the path and its queue comes two round trips after it was
/// asked for.
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

//! How many RDMA READ responses may be on their way from one endpoint.

use crate::Time;
use crate::rc::congestion::{Cubic, MarkedShare, Pacer, RoundTrip};
use crate::rc::read_budget::{Awaited, ChargePeriod, response_cost};

/// The window of READ responses from one endpoint. The [`ReadBudget`](super::ReadBudget) keeps
/// responses from overrunning our receive buffer; this keeps those of one peer from overrunning the
/// network, which shows in responses that have to be asked for again, or that come with Congestion
/// Experienced. It doubles until then.
///
/// Its charges are those of the budget as well, and end with the same periods.
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

    /// How many response packets with `payload_bytes` each may be asked for in `period`, at most
    /// `wanted`. When nothing is awaited it is at least one.
    pub(super) fn admits(&mut self, period: ChargePeriod, wanted: u32, payload_bytes: u32) -> u32 {
        self.awaited.age(period);
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
    /// responses are paced: they leave the peer at once.
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

    /// Counts packets that are asked for now.
    pub(super) const fn charge(&mut self, packets: u32, payload_bytes: u32) {
        let cost = response_cost(packets, payload_bytes);
        self.awaited.charge(cost);
        self.pacer.take(cost);
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

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::rc::ReadBudget;

    const PAYLOAD: u32 = 4096;

    #[test]
    fn it_shrinks_and_grows_again() {
        let (mut budget, mut window) = (ReadBudget::unlimited(), ResponseWindow::new());
        let mut now = Time::from_nanos(1_000_000_000);
        let mut ask = |window: &mut ResponseWindow, now| {
            let period = budget.period(now);
            let packets = window.admits(period, 60, PAYLOAD);
            window.charge(packets, PAYLOAD);
            (packets, period)
        };
        let (packets, period) = ask(&mut window, now);
        assert_eq!(packets, 60);
        window.lost(now, now);
        assert_eq!(ask(&mut window, now).0, 0, "more than the window is awaited");
        let mut round_trip = RoundTrip::new();
        round_trip.sample(now, Duration::from_millis(1));
        for _ in 0..60 {
            window.came(now, PAYLOAD, period, &round_trip);
        }
        let (after_loss, mut period) = ask(&mut window, now);
        assert_eq!(after_loss, 42);
        let mut awaited = after_loss;
        for _ in 0..100 {
            now = now + Duration::from_millis(1);
            for _ in 0..awaited {
                window.came(now, PAYLOAD, period, &round_trip);
            }
            (awaited, period) = ask(&mut window, now);
        }
        assert!((54..=60).contains(&awaited), "{awaited} packets");
    }

    /// A peer that withholds its responses is asked again when the budget has forgotten them.
    #[test]
    fn missing_responses_are_forgotten() {
        let (mut budget, mut window) = (ReadBudget::unlimited(), ResponseWindow::new());
        window.charge(10, PAYLOAD);
        window.lost(Time::ZERO, Time::ZERO);
        assert_eq!(window.admits(budget.period(Time::ZERO), 10, PAYLOAD), 0);
        let later = Time::from_nanos(30_000_000);
        assert_eq!(window.admits(budget.period(later), 10, PAYLOAD), 7);
    }
}

//! Two windows, for the receiver's buffer and for the network; the smaller applies.

use super::{Cubic, Halving, LossCause, MarkedShare, Pace, RoundTrip};
use crate::Time;

/// Two windows. The cause of a loss determines which one is reduced.
///
/// Several senders that overflow one receive buffer keep losing packets until they leave room in
/// it, so `Halving` returns only slowly to the size at which the buffer overflowed. A network that
/// loses one packet in a thousand does so at any rate; by the rule of `Halving` the window would
/// never grow again there.
#[derive(Clone, Debug)]
pub(crate) struct CongestionControl {
    receiver: Halving,
    network: Cubic,
    marks: MarkedShare,
    last_cut: Option<Time>,
}

impl CongestionControl {
    pub(crate) const fn new() -> Self {
        Self {
            receiver: Halving::new(),
            network: Cubic::Unlimited,
            marks: MarkedShare::new(),
            last_cut: None,
        }
    }

    /// Whether packets sent at `left` are lost in a new event, so that the window must be reduced.
    fn is_new_loss(&mut self, now: Time, left: Time) -> bool {
        let new = self.last_cut.is_none_or(|cut| left >= cut);
        if new {
            self.last_cut = Some(now);
        }
        new
    }

    /// Maximum number of bytes in flight, as [`datagram_cost`](crate::rc::datagram_cost()) counts
    /// them.
    pub(crate) fn window(&self) -> u64 {
        self.receiver.window().min(self.network.window())
    }

    /// The pace of packets; `None` for no pacing.
    pub(crate) fn pace(&self, round_trip: &RoundTrip) -> Option<Pace> {
        self.network.pace(round_trip, self.receiver.window())
    }

    /// Grows the smaller window after packets of cost `bytes` were acknowledged, if it had held
    /// back packets. The larger one was not tested, and does not grow.
    pub(crate) fn on_ack(&mut self, now: Time, bytes: u64, round_trip: &RoundTrip) {
        if self.network.window() < self.receiver.window() {
            self.network.on_ack(now, bytes, round_trip);
        } else {
            self.receiver.on_ack(now, bytes, Pace::is_set(round_trip));
        }
    }

    /// Handles the loss of a packet that was sent at `left` at the earliest. Losses of packets sent
    /// before the last reduction belong to the same event.
    pub(crate) fn on_loss(&mut self, now: Time, left: Time, cause: LossCause) {
        if !self.is_new_loss(now, left) {
            return;
        }
        match cause {
            LossCause::ReceiveBuffer => self.receiver.on_loss(now),
            LossCause::Network => self.network.on_loss(now, self.window()),
        }
    }

    /// Handles a congestion notification or BECN of the receiver; `used` is the maximum number of
    /// bytes in flight. Reduces the window at most once per round trip; returns whether it did.
    pub(crate) fn on_cnp(&mut self, now: Time, used: u64, round_trip: &RoundTrip) -> bool {
        let round = round_trip.of_marks();
        let Some(share) = self.marks.mark(now, 1, round) else { return false };
        if self.last_cut.is_some_and(|cut| now - cut < round) {
            return false;
        }
        self.last_cut = Some(now);
        self.network.on_mark(now, used.min(self.window()), share);
        true
    }

    /// Handles repeated timeouts of packets that were sent at `left`.
    pub(crate) fn on_timeout(&mut self, now: Time, left: Time) {
        if self.is_new_loss(now, left) {
            self.receiver.on_loss(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::rc::congestion::FULL_PACKET;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// A window that has grown for this long, and the time then.
    fn grown(milliseconds: u32) -> (CongestionControl, RoundTrip, Time) {
        let (mut control, mut round_trip) = (CongestionControl::new(), RoundTrip::new());
        let mut now = Time::from_nanos(1_000_000_000);
        for _ in 0..milliseconds {
            now = now + MILLISECOND;
            round_trip.sample(now, MILLISECOND);
            let window = control.window();
            control.on_ack(now, window, &round_trip);
        }
        (control, round_trip, now)
    }

    #[test]
    fn the_network_may_lose_packets_for_long() {
        let (mut control, round_trip, mut now) = grown(200);
        // One packet in a thousand, for ten seconds.
        let mut acknowledged = 0;
        for _ in 0..10_000 {
            now = now + MILLISECOND;
            let window = control.window();
            control.on_ack(now, window, &round_trip);
            acknowledged += window / FULL_PACKET;
            if acknowledged > 1000 {
                acknowledged = 0;
                control.on_loss(now, now, LossCause::Network);
            }
        }
        let packets = control.window() / FULL_PACKET;
        assert!((25..80).contains(&packets), "{packets}; AIMD has the root of 1,500: 39");
    }

    #[test]
    fn a_full_receive_buffer_is_remembered() {
        let (mut control, round_trip, mut now) = grown(200);
        let before = control.window();
        control.on_loss(now, now, LossCause::ReceiveBuffer);
        for _ in 0..100 {
            now = now + MILLISECOND;
            let window = control.window();
            control.on_ack(now, window, &round_trip);
        }
        assert!(control.window() < before / 4 * 3, "{} of {before}", control.window());
    }

    /// A network that lost packets once is soon no longer the limit.
    #[test]
    fn the_smaller_window_holds() {
        let (mut control, round_trip, mut now) = grown(200);
        let before = control.window();
        control.on_loss(now, now, LossCause::Network);
        assert_eq!(control.window(), before / 10 * 7);
        for cause in [LossCause::Network, LossCause::ReceiveBuffer] {
            control.on_loss(now + MILLISECOND, Time::ZERO, cause);
        }
        assert_eq!(control.window(), before / 10 * 7, "those packets left before");
        control.on_loss(now, now, LossCause::ReceiveBuffer);
        assert!(control.window() <= before / 8 * 5);
        for _ in 0..2_000 {
            now = now + MILLISECOND;
            let window = control.window();
            control.on_ack(now, window, &round_trip);
        }
        assert!(control.window() > before, "{} was {before}", control.window());
    }
}

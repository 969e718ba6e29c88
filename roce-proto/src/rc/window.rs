//! The window of bytes in flight towards one endpoint.
//!
//! A RoCE v2 receiver in software is a UDP socket: packets that do not fit into its buffer are
//! lost, the sender does not know the size of the buffer, and all senders share it. The window
//! therefore starts small enough for a default Linux buffer, grows fast until the first loss, and
//! adapts to losses. Each loss causes go-back-N, so the window remembers at which size the receive
//! buffer overflowed and approaches it again only slowly. Network losses are handled as in TCP.

use core::time::Duration;

use crate::Time;
use crate::deliberate_bugs::{self, Bug};
use crate::rc::congestion::{CongestionControl, FULL_PACKET, LossCause, Pacer, RoundTrip};
use crate::rc::read_budget::ChargePeriod;
use crate::rc::response_window::ResponseWindow;

/// Minimum time for which a missing packet is assumed to have been in flight: timers and process
/// scheduling are no finer.
const ON_ITS_WAY: Duration = Duration::from_millis(1);

/// The congestion window shared by all queue pairs of a process, or of one of its threads, that
/// send to the same remote endpoint, in bytes as [`datagram_cost`](super::datagram_cost()) counts
/// them, and the round-trip time to that endpoint.
///
/// Packets of SENDs and RDMA WRITEs are charged until they are acknowledged. RDMA READ requests are
/// not charged, since their number is limited; nor are acknowledgements, which must be sent. READ
/// responses from the endpoint are limited by a window of their own, and by the
/// [`ReadBudget`](super::ReadBudget) of our socket.
///
/// For fairness, the caller must poll the queue pairs that want to transmit in turn. If nothing is
/// in flight, one packet is always admitted, so no queue pair starves.
#[derive(Clone, Debug)]
pub struct SendWindow {
    control: CongestionControl,
    in_flight: u64,
    /// The part of `in_flight` for which no acknowledgement was requested.
    unsolicited: u64,
    /// Maximum of `in_flight` since the window was last reduced for congestion.
    most_in_flight: u64,
    /// True if a packet was held back since half of the window was last free.
    limited: bool,
    round_trip: RoundTrip,
    pacer: Pacer,
    responses: ResponseWindow,
}

/// The reason why a packet may not be sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// The window is full: wait for an acknowledgement or a response.
    Room,
    /// Pacing: wait until this time.
    Until(Time),
}

impl SendWindow {
    /// The initial window towards an endpoint.
    pub const fn new() -> Self {
        Self {
            control: CongestionControl::new(),
            in_flight: 0,
            most_in_flight: 0,
            unsolicited: 0,
            limited: false,
            round_trip: RoundTrip::new(),
            pacer: Pacer::new(),
            responses: ResponseWindow::new(),
        }
    }

    /// Bytes in flight, as [`datagram_cost`](super::datagram_cost()) counts them.
    pub const fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Maximum number of bytes in flight, as [`datagram_cost`](super::datagram_cost()) counts them.
    pub fn limit(&self) -> u64 {
        self.control.window()
    }

    /// The smoothed round-trip time; `None` before the first sample.
    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip.smoothed()
    }

    /// Whether a packet of this cost may be sent now; else the reason to wait.
    pub(super) fn admits(&mut self, now: Time, cost: u64) -> Result<(), Wait> {
        if self.in_flight == 0 {
            return Ok(());
        }
        if self.in_flight + cost > self.limit() {
            self.limited = true;
            return Err(Wait::Room);
        }
        match self.control.pace(&self.round_trip) {
            Some(pace) if self.pacer.tokens(now, pace) < cost => {
                Err(Wait::Until(self.pacer.ready_at(cost, pace)))
            }
            _ => Ok(()),
        }
    }

    /// Whether the window has no room for another full packet.
    pub(super) fn is_closing(&self) -> bool {
        self.in_flight + FULL_PACKET > self.limit()
    }

    /// Whether a sender that has sent `unsolicited` bytes without requesting an acknowledgement
    /// must request one. Until then its packets occupy the window, which others share.
    pub(super) fn needs_ack_request(&self, unsolicited: u64) -> bool {
        unsolicited >= self.limit() / 4 || self.unsolicited >= self.limit() / 2
    }

    /// Counts a packet of this cost as sent without requesting an acknowledgement.
    pub(super) const fn add_unsolicited(&mut self, cost: u64) {
        self.unsolicited += cost;
    }

    /// Removes bytes from the unsolicited count, since their acknowledgement was requested or is
    /// not needed.
    pub(super) fn asked(&mut self, unsolicited: u64) {
        debug_assert!(unsolicited <= self.unsolicited, "more was asked for than was left");
        self.unsolicited = self.unsolicited.saturating_sub(unsolicited);
    }

    pub(super) fn charge(&mut self, cost: u64) {
        self.in_flight += cost;
        self.pacer.take(cost);
        self.most_in_flight = self.most_in_flight.max(self.in_flight);
    }

    pub(super) fn release(&mut self, cost: u64) {
        debug_assert!(cost <= self.in_flight, "more was released than was charged");
        self.in_flight = self.in_flight.saturating_sub(cost);
    }

    /// Releases acknowledged packets of this cost, and grows the window if it had held back
    /// packets. `sample` is the round-trip time of one of them, if it was sent only once.
    pub(super) fn acknowledged(&mut self, now: Time, cost: u64, sample: Option<Duration>) {
        let limited = self.limited;
        self.release(cost);
        self.limited &= self.in_flight >= self.limit() / 2;
        if let Some(sample) = sample {
            self.round_trip.sample(now, sample);
        }
        if limited {
            self.control.on_ack(now, cost, &self.round_trip);
        }
    }

    /// Handles the loss of a packet, shown by the peer or by a timeout after `silence`. Losses of
    /// packets that were in flight when the window was last reduced do not reduce it again, so that
    /// timeouts of many queue pairs after one pause count once.
    pub(super) fn lost(&mut self, now: Time, silence: Duration, cause: LossCause) {
        if !deliberate_bugs::has(Bug::IgnoreLosses) {
            self.control.on_loss(now, self.left_at(now, silence), cause);
        }
    }

    /// Handles a congestion notification of the receiver.
    pub(super) fn congested(&mut self, now: Time) {
        if self.control.on_cnp(now, self.most_in_flight, &self.round_trip) {
            self.most_in_flight = self.in_flight;
        }
    }

    /// Handles repeated timeouts: no packet has arrived for `silence`.
    pub(super) fn timed_out(&mut self, now: Time, silence: Duration) {
        if !deliberate_bugs::has(Bug::IgnoreLosses) {
            self.control.on_timeout(now, self.left_at(now, silence));
        }
    }

    /// Number of READ response packets with `payload_bytes` each that may be requested, at most
    /// `wanted`. All that arrived until `handled` was released before.
    pub(super) fn admits_responses(
        &mut self,
        handled: Time,
        wanted: u32,
        payload_bytes: u32,
    ) -> u32 {
        self.responses.admits(handled, wanted, payload_bytes, &self.round_trip)
    }

    /// Time at which missing READ responses stop counting, which makes room for others.
    pub(super) fn forgets_responses_at(&self) -> Time {
        self.responses.forgets_at(&self.round_trip)
    }

    /// Charges READ response packets that are requested now.
    pub(super) fn charge_responses(
        &mut self,
        now: Time,
        packets: u32,
        payload_bytes: u32,
    ) -> ChargePeriod {
        self.responses.charge(now, packets, payload_bytes)
    }

    /// Releases READ response packets charged in `period` that are not expected any longer.
    pub(super) fn release_responses(
        &mut self,
        packets: u32,
        payload_bytes: u32,
        period: ChargePeriod,
    ) {
        self.responses.release(packets, payload_bytes, period);
    }

    /// Number of these READ response packets that may be requested now, or the time to retry.
    pub(super) fn pace_responses(
        &mut self,
        now: Time,
        packets: u32,
        payload_bytes: u32,
    ) -> Result<u32, Time> {
        self.responses.paced(now, packets, payload_bytes, &self.round_trip)
    }

    /// Whether the window for READ responses was ever reduced.
    pub(super) const fn lost_responses(&self) -> bool {
        self.responses.has_lost()
    }

    /// Handles the arrival of a READ response that was charged in `period`.
    pub(super) fn response_came(&mut self, now: Time, payload_bytes: u32, period: ChargePeriod) {
        self.responses.came(now, payload_bytes, period, &self.round_trip);
    }

    /// Handles a READ response with Congestion Experienced.
    pub(super) fn response_marked(&mut self, now: Time) {
        self.responses.marked(now, &self.round_trip);
    }

    /// Handles the loss of READ responses, shown by later ones or by a timeout after `silence`.
    pub(super) fn responses_lost(&mut self, now: Time, silence: Duration) {
        if !deliberate_bugs::has(Bug::IgnoreLosses) {
            self.responses.lost(now, self.left_at(now, silence));
        }
    }

    /// The earliest time at which a packet that is missing at `now`, after `silence`, was sent.
    fn left_at(&self, now: Time, silence: Duration) -> Time {
        let on_its_way = self.round_trip().unwrap_or(ON_ITS_WAY).max(ON_ITS_WAY).max(silence);
        Time::ZERO + (now - Time::ZERO).saturating_sub(on_its_way)
    }

    /// Time after which an immediate answer of the peer is considered late.
    pub(super) fn late_after(&self) -> Duration {
        self.round_trip.late_after()
    }

    /// The retransmission timeout for the endpoint.
    pub(super) fn retransmit_after(&self) -> Duration {
        self.round_trip.retransmit_after()
    }
}

impl Default for SendWindow {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::rc::congestion::LARGEST_WINDOW;
    use crate::rc::datagram_cost;

    const STOCK_BUFFER: u64 = 425_984;
    const MILLISECOND: Duration = Duration::from_millis(1);
    /// Too short for pacing.
    const ROUND_TRIP: Duration = Duration::from_micros(100);

    /// Sends full packets in rounds, each a millisecond, for as long as a receiver with this buffer
    /// takes them; returns how many round trips lost something.
    fn rounds(window: &mut SendWindow, now: &mut Time, count: usize, buffer: u64) -> usize {
        let mut losses = 0;
        for _ in 0..count {
            *now = *now + MILLISECOND;
            let mut packets = 0;
            while window.admits(*now, FULL_PACKET).is_ok() {
                window.charge(FULL_PACKET);
                packets += 1;
            }
            if window.in_flight() > buffer {
                losses += 1;
                window.lost(*now, Duration::ZERO, LossCause::ReceiveBuffer);
            }
            for _ in 0..packets {
                window.acknowledged(*now, FULL_PACKET, Some(ROUND_TRIP));
            }
        }
        losses
    }

    #[test]
    fn the_window_grows_to_a_stock_buffer() {
        let (mut window, mut now) = (SendWindow::new(), Time::ZERO);
        assert!(window.limit() * 16 < STOCK_BUFFER);
        assert_eq!(rounds(&mut window, &mut now, 80, STOCK_BUFFER), 0);
        assert!(window.limit() > STOCK_BUFFER / 4 * 3);
    }

    #[test]
    fn losses_are_rare_once_it_has_learned() {
        for buffer in [STOCK_BUFFER / 4, STOCK_BUFFER, STOCK_BUFFER * 4] {
            let (mut window, mut now) = (SendWindow::new(), Time::ZERO);
            rounds(&mut window, &mut now, 5_000, buffer);
            let losses = rounds(&mut window, &mut now, 10_000, buffer);
            assert!(losses < 100, "{losses} of 10,000 round trips lost something");
            assert!(window.limit() > buffer / 3, "it uses the buffer: {}", window.limit());
        }
    }

    /// A large buffer is in use after half a second, though its size is unknown.
    #[test]
    fn it_finds_a_large_buffer_before_long() {
        let (mut window, mut now) = (SendWindow::new(), Time::ZERO);
        assert_eq!(rounds(&mut window, &mut now, 500, LARGEST_WINDOW), 0);
        assert_eq!(window.limit(), LARGEST_WINDOW);
        window.lost(now, Duration::ZERO, LossCause::ReceiveBuffer);
        let after_loss = window.limit();
        rounds(&mut window, &mut now, 100, LARGEST_WINDOW);
        assert!(
            (after_loss + 1..LARGEST_WINDOW).contains(&window.limit()),
            "it approaches slowly now"
        );
    }

    #[test]
    fn one_packet_is_always_admitted() {
        let (mut window, mut now) = (SendWindow::new(), Time::ZERO);
        for _ in 0..100 {
            now = now + Duration::from_secs(1);
            window.lost(now, Duration::ZERO, LossCause::ReceiveBuffer);
        }
        assert!(window.admits(now, datagram_cost(9000)).is_ok());
        window.charge(FULL_PACKET);
        assert_eq!(window.admits(now, FULL_PACKET), Err(Wait::Room));
    }

    #[test]
    fn a_burst_of_losses_counts_once() {
        let (mut window, now) = (SendWindow::new(), Time::from_nanos(1_000_000_000));
        let mut later = now;
        rounds(&mut window, &mut later, 50, u64::MAX);
        let before = window.limit();
        for _ in 0..10 {
            window.lost(later, Duration::ZERO, LossCause::ReceiveBuffer);
        }
        assert_eq!(window.limit(), before / 2);
    }

    #[test]
    fn an_unused_window_does_not_grow() {
        let mut window = SendWindow::new();
        let initial = window.limit();
        for step in 1..1000 {
            assert!(window.admits(Time::ZERO, 1000).is_ok());
            window.charge(1000);
            window.acknowledged(Time::from_nanos(step * 1_000_000), 1000, None);
        }
        assert_eq!(window.limit(), initial);
    }
}

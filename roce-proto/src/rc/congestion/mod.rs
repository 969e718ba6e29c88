//! Congestion control: how many bytes may be in flight towards one endpoint, and how fast they may
//! leave, as far as acknowledgements, losses and marks tell.
//!
//! A [`CongestionControl`] keeps no account of packets: [`SendWindow`](super::SendWindow) charges
//! and releases them, and reports here what it learns. Nothing here reads a clock or allocates, and
//! all arithmetic is in integers.

mod cubic;
mod halving;
mod marks;
mod pacer;
mod round_trip;
mod two_limits;

pub(super) use cubic::Cubic;
use halving::Halving;
pub(super) use marks::MarkedShare;
pub use pacer::Pace;
pub(super) use pacer::Pacer;
pub use round_trip::RoundTrip;
pub(super) use two_limits::TwoLimits;

use crate::Time;
use crate::rc::datagram_cost::{HEADERS_BYTES, datagram_cost};

/// What a packet with 4096 bytes of payload costs the window.
pub(super) const FULL_PACKET: u64 = datagram_cost(4096 + HEADERS_BYTES);

/// A window larger than this gains nothing: no socket buffer is larger.
pub(super) const LARGEST_WINDOW: u64 = 16 << 20;

/// What a packet was lost to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// A full receive buffer, as the receiver reported; or the receiver does not report that, and
    /// it may have been.
    ReceiveBuffer,
    /// Something else, of a receiver that would have reported a full buffer.
    Network,
}

/// A rule by which the window towards one endpoint follows what is seen of the network. Bytes count
/// as [`datagram_cost`] counts them.
pub trait CongestionControl {
    /// Bytes that may be in flight.
    fn window(&self) -> u64;

    /// How fast packets are to leave; `None` for as fast as the window admits them.
    fn pace(&self, round_trip: &RoundTrip) -> Option<Pace>;

    /// Packets that cost `bytes` were acknowledged while the window had held packets up.
    fn on_ack(&mut self, now: Time, bytes: u64, round_trip: &RoundTrip);

    /// A packet was lost that left at `left` at the earliest. Losses of packets that left before
    /// the window was last reduced are part of the same event.
    fn on_loss(&mut self, now: Time, left: Time, cause: LossCause);

    /// The receiver says that packets met congestion on the way, while at most `used` bytes were in
    /// flight: with a congestion notification, or BECN. Reduces the window once for each round
    /// trip; returns whether it did now.
    fn on_cnp(&mut self, now: Time, used: u64, round_trip: &RoundTrip) -> bool;

    /// Nothing was heard of packets that left at `left`, several times in a row.
    fn on_timeout(&mut self, now: Time, left: Time);
}

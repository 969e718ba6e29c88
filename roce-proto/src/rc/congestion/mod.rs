//! Congestion control: how many bytes may be in flight towards one endpoint, and how fast they may
//! leave, as far as acknowledgements, losses and marks tell.
//!
//! `TwoLimits` keeps no account of packets: [`SendWindow`](super::SendWindow) charges and releases
//! them, and reports here what it learns. Nothing here reads a clock or allocates, and all
//! arithmetic is in integers.

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

use crate::rc::datagram_cost::{HEADERS_BYTES, datagram_cost};

/// Cost of a packet with 4096 bytes of payload to the window.
pub(super) const FULL_PACKET: u64 = datagram_cost(4096 + HEADERS_BYTES);

/// A window larger than this gains nothing: no socket buffer is larger.
pub(super) const LARGEST_WINDOW: u64 = 16 << 20;

/// Cause of the loss of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// A full receive buffer, as the receiver reported; or the receiver does not report that, and
    /// it may have been.
    ReceiveBuffer,
    /// Something else, of a receiver that would have reported a full buffer.
    Network,
}

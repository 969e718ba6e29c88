//! Congestion control: how many bytes may be in flight towards one endpoint, and at which pace they
//! are sent, from acknowledgements, losses and ECN marks.
//!
//! `CongestionControl` does not count packets: [`SendWindow`](super::SendWindow) charges and
//! releases them, and reports events here. Nothing here reads a clock or allocates, and all
//! arithmetic is in integers.

mod congestion_control;
mod cubic;
mod halving;
mod marks;
mod pacer;
mod round_trip;

pub(super) use congestion_control::CongestionControl;
pub(super) use cubic::Cubic;
use halving::Halving;
pub(super) use marks::MarkedShare;
pub use pacer::Pace;
pub(super) use pacer::Pacer;
pub use round_trip::RoundTrip;

use crate::rc::datagram_cost::{HEADERS_BYTES, datagram_cost};

/// Window cost of a packet with 4,096 bytes of payload.
pub(super) const FULL_PACKET: u64 = datagram_cost(4096 + HEADERS_BYTES);

/// Maximum window in bytes: no socket buffer is larger.
pub(super) const LARGEST_WINDOW: u64 = 16 << 20;

/// The cause of a packet loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossCause {
    /// A full receive buffer: reported by the receiver, or assumed if the receiver does not report
    /// it.
    ReceiveBuffer,
    /// The network: the receiver would have reported a full buffer.
    Network,
}

//! The sizes of a queue pair, and the parameters of its connection.

use crate::wire::RnrTimer;
use crate::{PathMtu, Psn, Qpn};

/// The most scatter-gather elements of one work request.
pub const SGE_MAX: usize = 16;

/// The most bytes that an inline request carries; no more than the smallest path MTU, so that it is
/// always one packet.
pub const INLINE_MAX_BYTES: usize = 256;

/// The most work requests of one queue.
pub const WR_MAX: u32 = 16 * 1024;

/// The most RDMA READ requests that one side has outstanding.
pub const READS_MAX: usize = 16;

/// The longest message: half of the length that the specification allows, so that the sequence
/// numbers of any message fit well within half their space.
pub const MESSAGE_MAX_BYTES: u32 = 1 << 30;

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Requests in the send queue.
    pub send_wr: u32,
    /// Requests in the receive queue.
    pub recv_wr: u32,
    /// Scatter-gather elements per send request.
    pub send_sge: u32,
    /// Scatter-gather elements per receive.
    pub recv_sge: u32,
    /// Bytes that an inline request may carry.
    pub inline_bytes: u32,
}

impl QueuePairConfig {
    /// The sizes that are granted when these are asked for: the same within the limits of this
    /// module, and room for at least one of each.
    #[must_use]
    pub fn granted(&self) -> Self {
        Self {
            send_wr: self.send_wr.clamp(1, WR_MAX),
            recv_wr: self.recv_wr.clamp(1, WR_MAX),
            send_sge: self.send_sge.clamp(1, SGE_MAX as u32),
            recv_sge: self.recv_sge.clamp(1, SGE_MAX as u32),
            inline_bytes: self.inline_bytes.min(INLINE_MAX_BYTES as u32),
        }
    }

    /// The sizes that a queue pair has memory for at first: at most 8 requests in each queue, so
    /// that peers that never use it, and may be strangers, take little memory.
    pub(super) fn at_first(&self) -> Self {
        const FEW: u32 = 8;
        Self { send_wr: self.send_wr.min(FEW), recv_wr: self.recv_wr.min(FEW), ..*self }
    }
}

/// The parameters that connection management agreed on.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionParams {
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// Payload of a full packet, the same both ways.
    pub path_mtu: PathMtu,
    /// The first sequence number that we send.
    pub send_psn: Psn,
    /// The first sequence number that the peer sends.
    pub recv_psn: Psn,
    /// ACK time-outs in a row before the peer is given up: 0..=7.
    pub retry_count: u8,
    /// Receiver-not-ready answers in a row before the peer is given up: 0..=6, or 7 for no limit.
    pub rnr_retry_count: u8,
    /// The local ACK timeout is 4.096 us times two to the power of this; 0 stands for "no limit".
    pub ack_timeout_exponent: u8,
    /// How long the peer is told to wait when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// RDMA READs that we may have outstanding; at most [`READS_MAX`] are used.
    pub initiator_depth: u8,
    /// RDMA READs that the peer may have outstanding; at most [`READS_MAX`] are served.
    pub responder_resources: u8,
    /// Each side sets BECN in what it answers while its receive buffer overflows. Otherwise we do
    /// not, and any packet that the peer misses may have been lost to its buffer.
    pub reports_overflow: bool,
    /// Each side places RDMA WRITEs that come before a missing packet, tells which packets came,
    /// and sends again only what is missing.
    pub selective_recovery: bool,
}

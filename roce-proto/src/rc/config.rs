//! Sizes of a queue pair, and parameters of its connection.

use crate::wire::RnrTimer;
use crate::{PathMtu, Psn, Qpn};

/// Maximum number of scatter-gather elements of a work request.
pub const SGE_MAX: usize = 16;

/// Maximum inline data of a request in bytes; not more than the smallest path MTU, so that it
/// always fits one packet.
pub const INLINE_MAX_BYTES: usize = 256;

/// Maximum number of work requests in a queue.
pub const WR_MAX: u32 = 16 * 1024;

/// Maximum number of outstanding RDMA READ requests of one side.
pub const READS_MAX: usize = 16;

/// Maximum message length in bytes: half of what the specification allows, so that the PSNs of a
/// message always take less than half of the PSN space.
pub const MESSAGE_MAX_BYTES: u32 = 1 << 30;

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairConfig {
    /// Maximum number of requests in the send queue.
    pub send_wr: u32,
    /// Maximum number of requests in the receive queue.
    pub recv_wr: u32,
    /// Maximum number of scatter-gather elements of a send request.
    pub send_sge: u32,
    /// Maximum number of scatter-gather elements of a receive request.
    pub recv_sge: u32,
    /// Maximum inline data of a send request, in bytes.
    pub inline_bytes: u32,
}

impl QueuePairConfig {
    /// The sizes that are granted for these: at least 1 (except `inline_bytes`), and at most the
    /// limits of this module.
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

    /// The sizes for which memory is allocated first: at most 8 requests per queue, so that peers
    /// that do not use their queue pair cost little memory.
    pub(super) fn at_first(&self) -> Self {
        const FEW: u32 = 8;
        Self { send_wr: self.send_wr.min(FEW), recv_wr: self.recv_wr.min(FEW), ..*self }
    }
}

/// Parameters agreed on by connection management.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionParams {
    /// The peer's queue pair number.
    pub remote_qpn: Qpn,
    /// Path MTU, for both directions.
    pub path_mtu: PathMtu,
    /// First PSN that we send.
    pub send_psn: Psn,
    /// First PSN that the peer sends.
    pub recv_psn: Psn,
    /// Maximum number of retries after an ACK timeout, 0..=7; then the queue pair fails.
    pub retry_count: u8,
    /// Maximum number of retries after an RNR NAK, 0..=6, or 7 for no limit; then the queue pair
    /// fails.
    pub rnr_retry_count: u8,
    /// Local ACK timeout exponent `n`: the timeout is 4.096 us * 2^n; 0 for no timeout.
    pub ack_timeout_exponent: u8,
    /// RNR timer that the peer gets when no receive is posted.
    pub min_rnr_timer: RnrTimer,
    /// RDMA READs that we may have outstanding; at most [`READS_MAX`] are used.
    pub initiator_depth: u8,
    /// RDMA READs that the peer may have outstanding; at most [`READS_MAX`] are served.
    pub responder_resources: u8,
    /// Whether both sides set BECN in acknowledgements while their receive buffer overflows. If
    /// false, we do not, and every loss is assumed to be possibly due to the peer's receive buffer.
    pub reports_overflow: bool,
    /// Whether both sides use selective recovery: RDMA WRITEs after a missing packet are placed and
    /// reported, and only missing packets are retransmitted.
    pub selective_recovery: bool,
}

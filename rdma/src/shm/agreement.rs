//! The connection parameters that the two ends have agreed on.

use core::time::Duration;

use crate::ConnParams;

/// Maximum number of RDMA READs that one end may have in flight.
pub(super) const MAX_DEPTH: u8 = 16;
/// Default ACK timeout exponent: 0.54 s. With the retry count it determines how long a silent peer
/// is waited for, as for `soft`.
pub(super) const ACK_TIMEOUT_EXPONENT: u8 = 17;
const MAX_EXPONENT: u8 = 31;

/// The parameters of a connected queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkAgreement {
    /// RDMA READs that we may have in flight.
    pub(super) initiator_depth: u8,
    /// RDMA READs that the peer may have in flight.
    pub(super) responder_resources: u8,
    /// Retries of a request that finds no receive; 7 for no limit.
    pub(super) rnr_retry_count: u8,
    /// How long the peer may make no progress on outstanding requests before the queue pair fails.
    pub(super) silence_timeout: Duration,
}

impl LinkAgreement {
    pub(super) fn new(params: &ConnParams, ack_timeout_exponent: u8) -> Self {
        let timeout = Duration::from_nanos(4096 << ack_timeout_exponent.min(MAX_EXPONENT));
        Self {
            initiator_depth: params.initiator_depth.min(MAX_DEPTH),
            responder_resources: params.responder_resources.min(MAX_DEPTH),
            rnr_retry_count: params.rnr_retry_count,
            silence_timeout: timeout * (u32::from(params.retry_count) + 1),
        }
    }
}

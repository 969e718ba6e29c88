//! Limits that queue pairs share.

use crate::rc::{ReadBudget, SendWindow};

/// Limits that a queue pair shares with others, for the duration of a call.
#[derive(Debug)]
pub struct SharedLimits<'a> {
    /// Congestion window towards the peer's endpoint.
    pub window: &'a mut SendWindow,
    /// Budget of RDMA READ responses towards our receive socket.
    pub reads: &'a mut ReadBudget,
    /// Whether our receive socket dropped packets recently, which is reported to peers.
    pub overflowed: bool,
}

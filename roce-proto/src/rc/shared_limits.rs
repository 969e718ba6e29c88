//! The limits that a queue pair shares with others.

use crate::rc::{ReadBudget, SendWindow};

/// The limits that a queue pair shares with others, lent to it for one call.
#[derive(Debug)]
pub struct SharedLimits<'a> {
    /// Window towards the peer's endpoint.
    pub window: &'a mut SendWindow,
    /// Budget of READ responses towards our own receive socket.
    pub reads: &'a mut ReadBudget,
    /// Our receive socket dropped packets lately, which peers are told.
    pub overflowed: bool,
}

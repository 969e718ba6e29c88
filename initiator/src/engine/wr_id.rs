//! Identifiers of work requests.

use crate::engine::arena::{ArenaKey, QueueKey};

/// Identifier of a work request, which says what its completion means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WrId {
    pub(crate) queue: QueueKey,
    pub(crate) kind: WrKind,
    /// Index of the command slot, or of the receive buffer.
    pub(crate) index: u16,
}

/// Kind of a work request: receive of a response, SEND of a command capsule, or bind or local
/// invalidation of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrKind {
    Receive,
    Send,
    Bind,
    Invalidate,
}

impl WrId {
    pub(crate) fn pack(self) -> u64 {
        (self.queue.index() as u64) << 32 | (self.kind as u64) << 16 | u64::from(self.index)
    }

    pub(crate) fn unpack(wr_id: u64) -> Self {
        let kind = match (wr_id >> 16) & 3 {
            0 => WrKind::Receive,
            1 => WrKind::Send,
            2 => WrKind::Bind,
            _ => WrKind::Invalidate,
        };
        Self { queue: QueueKey::at((wr_id >> 32) as usize), kind, index: wr_id as u16 }
    }
}

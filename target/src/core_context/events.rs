//! The events of a pool and of the line before it, in order.
//!
//! A simulator follows them to check that every request gets its buffer as soon as `share` says. A
//! share whose events are not taken keeps none.

use super::request_key::RequestKey;
use crate::limits::peer::Party;

/// One of them. Accounts have numbers, which are used again once they are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferEvent {
    /// There is a new account.
    Opened {
        /// Its number in the pool of this core.
        account: usize,
        /// The host's party, which may have several accounts.
        party: Party,
    },
    /// An account is gone. It had no buffer and no request in line.
    Closed {
        /// The number that it had.
        account: usize,
    },
    /// A request stands in line, behind all others of its account.
    LinedUp {
        /// The account of the request's host.
        account: usize,
        /// The request that waits.
        whose: RequestKey,
        /// The bytes that its buffer takes, unless it is the progress block.
        bytes: u64,
    },
    /// A request got a buffer, in line or at once.
    Granted {
        /// The account of the request's host.
        account: usize,
        /// The request that got it.
        whose: RequestKey,
        /// Address of the buffer's first byte.
        address: usize,
        /// Bytes that it takes of the pool.
        bytes: u64,
        /// It is the progress block.
        progress: bool,
    },
    /// A request left the line without a buffer.
    Left {
        /// The account of the request's host.
        account: usize,
        /// The request that left.
        whose: RequestKey,
    },
    /// The connection of a buffer has ended, and storage still works on it.
    LeftBehind {
        /// Address of the buffer's first byte.
        address: usize,
    },
    /// A buffer is back.
    Returned {
        /// Address of the buffer's first byte.
        address: usize,
    },
    /// No request in line can be given a buffer now.
    Settled,
    /// The core has nothing to do until something else happens.
    Rested,
}

/// Keeps the events once they have been asked for.
#[derive(Debug, Default)]
pub(super) struct BufferEvents(Option<Vec<BufferEvent>>);

impl BufferEvents {
    pub(super) fn push(&mut self, event: impl FnOnce() -> BufferEvent) {
        if let Some(kept) = &mut self.0 {
            kept.push(event());
        }
    }

    /// The events since the last call. They are kept from the first call on.
    pub(super) fn take(&mut self) -> Vec<BufferEvent> {
        self.0.replace(Vec::new()).unwrap_or_default()
    }
}

//! Events of a pool and its waiting requests, in order.
//!
//! A simulator reads them to check that every request gets its buffer as early as `share` promises.
//! A share whose events are not read records none.

use super::request_key::RequestKey;
use crate::limits::peer::Party;

/// Event of a buffer pool, for the simulator. Accounts have numbers, which are reused once they are
/// closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferEvent {
    /// An account was opened in the pool.
    Opened {
        /// Number of the account in the pool of this core.
        account: usize,
        /// Party of the host, which may have several accounts.
        party: Party,
    },
    /// An account without buffers and waiting requests was closed.
    Closed {
        /// Number that the account had.
        account: usize,
    },
    /// A request began to wait, behind all others of its account.
    LinedUp {
        /// Account of the request's host.
        account: usize,
        /// Request that began to wait.
        whose: RequestKey,
        /// Bytes of the pool that its buffer takes, unless it gets the progress block.
        bytes: u64,
    },
    /// A request got a buffer, immediately or after waiting.
    Granted {
        /// Account of the request's host.
        account: usize,
        /// Request that got it.
        whose: RequestKey,
        /// Address of the buffer's first byte.
        address: usize,
        /// Bytes that it takes of the pool.
        bytes: u64,
        /// Whether it is the progress block.
        progress: bool,
    },
    /// A request stopped waiting without a buffer.
    Left {
        /// Account of the request's host.
        account: usize,
        /// Request that stopped waiting.
        whose: RequestKey,
    },
    /// The connection of a buffer that storage still uses has ended.
    Orphaned {
        /// Address of the buffer's first byte.
        address: usize,
    },
    /// A buffer was returned to the pool.
    Returned {
        /// Address of the buffer's first byte.
        address: usize,
    },
    /// No waiting request can get a buffer now.
    NoGrant,
    /// The core has nothing to do and sleeps until something else happens.
    Rested,
}

/// Record of events; empty until the first call of [`BufferEvents::take`].
#[derive(Debug, Default)]
pub(super) struct BufferEvents(Option<Vec<BufferEvent>>);

impl BufferEvents {
    pub(super) fn push(&mut self, event: impl FnOnce() -> BufferEvent) {
        if let Some(kept) = &mut self.0 {
            kept.push(event());
        }
    }

    /// Events since the last call. They are recorded from the first call on.
    pub(super) fn take(&mut self) -> Vec<BufferEvent> {
        self.0.replace(Vec::new()).unwrap_or_default()
    }
}

//! What happens to a pool and to the line before it, in order.
//!
//! A simulator follows it to see that every request gets its buffer as soon as `share` says. A
//! share that nobody follows keeps nothing.

use std::net::IpAddr;

use super::request_key::RequestKey;

/// One of them. Accounts have numbers, which are used again once they are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferEvent {
    /// There is a new account.
    Opened {
        /// Its number.
        account: usize,
        /// Whose it is; one address may have several.
        ip: IpAddr,
    },
    /// An account is gone. It had no buffer and no request in line.
    Closed {
        /// Its number.
        account: usize,
    },
    /// A request stands in line, behind all others of its account.
    LinedUp {
        /// Its account.
        account: usize,
        /// The request.
        whose: RequestKey,
    },
    /// A request got a buffer, in line or at once.
    Granted {
        /// Its account.
        account: usize,
        /// The request.
        whose: RequestKey,
        /// Where the buffer lies.
        address: usize,
        /// Bytes that it takes of the pool.
        bytes: u64,
        /// It is the progress block.
        progress: bool,
    },
    /// A request left the line without a buffer.
    Left {
        /// Its account.
        account: usize,
        /// The request.
        whose: RequestKey,
    },
    /// The connection of a buffer has ended, and storage still works on it.
    LeftBehind {
        /// Where it lies.
        address: usize,
    },
    /// A buffer is back.
    Returned {
        /// Where it lies.
        address: usize,
    },
    /// Nobody in line can be given a buffer now.
    Settled,
    /// The core has nothing to do until something else happens.
    Rested,
}

/// Keeps what happens, for whoever follows it.
#[derive(Debug, Default)]
pub(super) struct BufferEvents(Option<Vec<BufferEvent>>);

impl BufferEvents {
    pub(super) fn push(&mut self, event: impl FnOnce() -> BufferEvent) {
        if let Some(kept) = &mut self.0 {
            kept.push(event());
        }
    }

    /// What has happened since the last call. The first one has what happens kept from then on.
    pub(super) fn take(&mut self) -> Vec<BufferEvent> {
        self.0.replace(Vec::new()).unwrap_or_default()
    }
}

//! Detection of connections that were lost between a write and its flush.
//!
//! A target that restarted may have lost writes that it had acknowledged and not flushed. A flush
//! over the next connection succeeds all the same, so that the loss of the connection has to be an
//! error of the flush.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Acknowledged writes of a session that were not flushed. Locked only while the interpreter is
/// attached, so that no other thread holds the lock at a fork.
#[derive(Debug, Default)]
pub(crate) struct UnflushedWrites {
    /// Number of lost connections when the first of them was submitted; `None` without writes.
    since: Mutex<Option<u64>>,
}

/// A batch of writes, before its end was observed.
#[derive(Debug)]
pub(crate) struct SubmittedWrite {
    writes: Arc<UnflushedWrites>,
    connections_lost: u64,
}

impl UnflushedWrites {
    /// Returns a batch that is submitted now. `connections_lost`: the number of connections that
    /// the session has lost.
    pub(crate) fn submit(self: &Arc<Self>, connections_lost: u64) -> SubmittedWrite {
        SubmittedWrite { writes: Arc::clone(self), connections_lost }
    }

    /// Removes the writes that a flush, which is sent now, covers. Returns the number of lost
    /// connections when the first of them was submitted.
    pub(crate) fn take(&self) -> Option<u64> {
        self.since().take()
    }

    /// Adds writes that were acknowledged. `connections_lost` is of the first of them.
    pub(crate) fn add(&self, connections_lost: u64) {
        let mut since = self.since();
        *since = Some(since.map_or(connections_lost, |other| other.min(connections_lost)));
    }

    fn since(&self) -> MutexGuard<'_, Option<u64>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SubmittedWrite {
    /// Records that the end of the batch was observed.
    pub(crate) fn acknowledge(&self) {
        self.writes.add(self.connections_lost);
    }
}

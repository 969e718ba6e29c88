//! The receive queue, used last-in, first-out, since the newest buffer is most likely in the cache.

use super::work_limits::WorkLimits;
use crate::{PushError, RecvWr, Sge};

/// Posted receives, used last-in, first-out.
pub(super) struct ReceiveQueue {
    limits: WorkLimits,
    entries: Vec<ReceiveEntry>,
    /// The scatter-gather elements of each entry, `limits.recv_sge` apart.
    sges: Box<[Sge]>,
}

/// A receive without its scatter-gather elements.
#[derive(Clone, Copy)]
struct ReceiveEntry {
    wr_id: u64,
    elements: usize,
}

impl ReceiveQueue {
    pub(super) fn new(limits: WorkLimits) -> Self {
        Self {
            limits,
            entries: Vec::with_capacity(limits.recv_wr),
            sges: vec![Sge::default(); limits.recv_wr * limits.recv_sge].into_boxed_slice(),
        }
    }

    /// Queues a receive; `taken` receives outside the queue count towards its limit.
    pub(super) fn push(&mut self, wr: &RecvWr<'_>, taken: usize) -> Result<(), PushError> {
        if wr.sges.len() > self.limits.recv_sge {
            return Err(PushError::TooManySges);
        }
        if self.entries.len() + taken >= self.limits.recv_wr {
            return Err(PushError::QueueFull);
        }
        let start = self.entries.len() * self.limits.recv_sge;
        self.sges[start..start + wr.sges.len()].copy_from_slice(wr.sges);
        self.entries.push(ReceiveEntry { wr_id: wr.wr_id, elements: wr.sges.len() });
        Ok(())
    }

    /// Removes the newest receive; returns its `wr_id` and its scatter-gather elements.
    pub(super) fn pop(&mut self) -> Option<(u64, &[Sge])> {
        let entry = self.entries.pop()?;
        let start = self.entries.len() * self.limits.recv_sge;
        Some((entry.wr_id, &self.sges[start..start + entry.elements]))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

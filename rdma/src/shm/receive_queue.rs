//! The receive queue: a stack, since the cache still has the memory of the newest receive.

use super::work_limits::WorkLimits;
use crate::{PushError, RecvWr, Sge};

/// Receives, used last-in, first-out.
pub(super) struct ReceiveQueue {
    limits: WorkLimits,
    entries: Vec<ReceiveEntry>,
    /// The elements of each place, `limits.recv_sge` apart.
    sges: Box<[Sge]>,
}

/// A receive without its elements.
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

    /// Queues a receive, unless `taken` more are in use.
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

    /// Takes the newest receive out: its name and its elements.
    pub(super) fn pop(&mut self) -> Option<(u64, &[Sge])> {
        let entry = self.entries.pop()?;
        let start = self.entries.len() * self.limits.recv_sge;
        Some((entry.wr_id, &self.sges[start..start + entry.elements]))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

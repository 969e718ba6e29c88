//! The receive queue, a stack.

use alloc::boxed::Box;
use alloc::vec;
use core::mem;

use crate::rc::{LocalSge, PostError, QueuePairConfig, RecvRequest, sge};

/// Posted receives. The last one posted is used first, since it and its buffer are most likely in
/// the cache; with many queue pairs, the cache cannot hold all receives.
#[derive(Debug)]
pub(super) struct RecvQueue {
    /// A stack: the first `count` are posted.
    entries: Box<[RecvEntry]>,
    sges: Box<[LocalSge]>,
    sge_room: usize,
    count: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvEntry {
    pub(super) wr_id: u64,
    /// Total length of its buffers in bytes.
    pub(super) length: u32,
    sge_count: u8,
}

impl RecvQueue {
    pub(super) fn new(config: &QueuePairConfig) -> Self {
        let slots = config.recv_wr as usize;
        let sge_room = config.recv_sge as usize;
        Self {
            entries: vec![RecvEntry::default(); slots].into_boxed_slice(),
            sges: vec![LocalSge::default(); slots * sge_room].into_boxed_slice(),
            sge_room,
            count: 0,
        }
    }

    /// Allocates memory for the granted number of receives.
    pub(super) fn grow(&mut self, granted: &QueuePairConfig) {
        let mut grown = Self { count: self.count, ..Self::new(granted) };
        grown.entries[..self.entries.len()].copy_from_slice(&self.entries);
        grown.sges[..self.sges.len()].copy_from_slice(&self.sges);
        *self = grown;
    }

    pub(super) const fn len(&self) -> u32 {
        self.count as u32
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether `request` has few enough scatter-gather elements.
    pub(super) const fn check(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if request.sges.len() > self.sge_room { Err(PostError::TooManySges) } else { Ok(()) }
    }

    /// Adds a receive that [`RecvQueue::check`] has accepted. The caller has checked for room.
    pub(super) fn push(&mut self, request: &RecvRequest<'_>) {
        let start = self.count * self.sge_room;
        let sge_count = request.sges.len() as u8;
        self.sges[start..start + request.sges.len()].copy_from_slice(request.sges);
        let length = sge::total_bytes(request.sges);
        self.entries[self.count] = RecvEntry { wr_id: request.wr_id, length, sge_count };
        self.count += 1;
    }

    /// Swaps the last two receives, so that the former last one is used first.
    pub(super) fn swap_last(&mut self) {
        let [.., before, last] = &mut self.entries[..self.count] else { return };
        mem::swap(before, last);
        let sges = &mut self.sges[(self.count - 2) * self.sge_room..self.count * self.sge_room];
        let (before, last) = sges.split_at_mut(self.sge_room);
        before.swap_with_slice(last);
    }

    /// The receive to use next, with its scatter-gather list.
    pub(super) fn last(&self) -> Option<(&RecvEntry, &[LocalSge])> {
        let slot = self.count.checked_sub(1)?;
        let entry = &self.entries[slot];
        let start = slot * self.sge_room;
        Some((entry, &self.sges[start..start + usize::from(entry.sge_count)]))
    }

    /// Removes the receive that [`RecvQueue::last`] returns.
    pub(super) fn pop(&mut self) -> Option<RecvEntry> {
        let entry = *self.last()?.0;
        self.count -= 1;
        Some(entry)
    }
}

//! The receive queue.

use alloc::boxed::Box;
use alloc::vec;

use crate::rc::{LocalSge, PostError, QpConfig, RecvRequest, sge};

/// A ring of receives.
#[derive(Debug)]
pub(super) struct RecvQueue {
    entries: Box<[RecvEntry]>,
    sges: Box<[LocalSge]>,
    sge_room: usize,
    head: u64,
    tail: u64,
}

/// A receive.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RecvEntry {
    pub(super) wr_id: u64,
    /// Bytes that it has room for.
    pub(super) length: u32,
    sge_count: u8,
}

impl RecvQueue {
    pub(super) fn new(config: &QpConfig) -> Self {
        let slots = config.recv_wr.next_power_of_two() as usize;
        let sge_room = config.recv_sge as usize;
        Self {
            entries: vec![RecvEntry::default(); slots].into_boxed_slice(),
            sges: vec![LocalSge::default(); slots * sge_room].into_boxed_slice(),
            sge_room,
            head: 0,
            tail: 0,
        }
    }

    pub(super) const fn len(&self) -> u32 {
        (self.tail - self.head) as u32
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    /// Whether `request` fits a slot.
    pub(super) const fn check(&self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if request.sges.len() > self.sge_room { Err(PostError::TooManySges) } else { Ok(()) }
    }

    /// Appends a receive that [`RecvQueue::check`] accepts. The caller has made sure that there is room.
    pub(super) fn push(&mut self, request: &RecvRequest<'_>) {
        let slot = self.slot(self.tail);
        let start = slot * self.sge_room;
        let sge_count = request.sges.len() as u8;
        self.sges[start..start + request.sges.len()].copy_from_slice(request.sges);
        let length = sge::total_bytes(request.sges);
        self.entries[slot] = RecvEntry { wr_id: request.wr_id, length, sge_count };
        self.tail += 1;
    }

    /// The oldest receive and its scatter-gather list.
    pub(super) fn front(&self) -> Option<(&RecvEntry, &[LocalSge])> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot(self.head);
        let entry = &self.entries[slot];
        let start = slot * self.sge_room;
        Some((entry, &self.sges[start..start + usize::from(entry.sge_count)]))
    }

    /// Removes the oldest receive.
    pub(super) fn pop(&mut self) -> Option<RecvEntry> {
        let entry = *self.front()?.0;
        self.head += 1;
        Some(entry)
    }

    fn slot(&self, position: u64) -> usize {
        position as usize & (self.entries.len() - 1)
    }
}

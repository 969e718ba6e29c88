//! Outstanding RDMA READ requests.

use crate::Psn;
use crate::rc::READS_MAX;
use crate::rc::read_budget::ChargePeriod;

/// The RDMA READ requests that were sent and are not completely answered, oldest first. The PSN
/// range of each is kept, since a repeated request must be within an earlier one.
#[derive(Debug)]
pub(super) struct OutstandingReads {
    reads: [OutstandingRead; READS_MAX],
    head: usize,
    length: usize,
}

/// An outstanding RDMA READ request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutstandingRead {
    pub(super) first: Psn,
    pub(super) end: Psn,
    /// Payload bytes for which each response packet was charged.
    pub(super) packet_bytes: u32,
    /// Period of the [`ReadBudget`](super::ReadBudget) in which it was charged.
    pub(super) period: ChargePeriod,
    pub(super) window_period: ChargePeriod,
}

impl OutstandingReads {
    pub(super) fn new() -> Self {
        Self { reads: [OutstandingRead::default(); READS_MAX], head: 0, length: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.length
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn front(&self) -> Option<&OutstandingRead> {
        self.iter().next()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &OutstandingRead> {
        (0..self.length).map(|index| &self.reads[(self.head + index) % READS_MAX])
    }

    /// The request whose responses include `psn`.
    pub(super) fn containing(&self, psn: Psn) -> Option<&OutstandingRead> {
        self.iter().find(|read| psn.is_within(read.first, read.end))
    }

    /// The first missing response, given that everything before `unacknowledged` is done.
    pub(super) fn first_missing(&self, unacknowledged: Psn) -> Option<Psn> {
        let read = self.front()?;
        Some(if unacknowledged.is_within(read.first, read.end) {
            unacknowledged
        } else {
            read.first
        })
    }

    /// Adds a request; the caller has checked for room.
    pub(super) fn push(&mut self, read: OutstandingRead) {
        debug_assert!(self.length < READS_MAX, "no more than the initiator depth");
        self.reads[(self.head + self.length) % READS_MAX] = read;
        self.length += 1;
    }

    pub(super) fn pop(&mut self) {
        self.head = (self.head + 1) % READS_MAX;
        self.length -= 1;
    }

    pub(super) fn clear(&mut self) {
        self.length = 0;
    }
}

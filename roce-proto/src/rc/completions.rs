//! Completions that are not polled yet.

use alloc::boxed::Box;
use alloc::vec;

use crate::rc::recv_queue::RecvEntry;
use crate::rc::send_queue::SendEntry;
use crate::rc::{CompletedWork, QueuePairConfig, ReceivedInfo, WorkCompletion, WorkStatus};

/// A ring with room for all requests of both queues. A completion occupies its request's queue
/// entry until it is polled, so the ring cannot overflow.
#[derive(Debug)]
pub(super) struct Completions {
    ring: Box<[WorkCompletion]>,
    head: u64,
    tail: u64,
    receives: u32,
}

impl Completions {
    pub(super) fn new(config: &QueuePairConfig) -> Self {
        const NOTHING: WorkCompletion = WorkCompletion {
            wr_id: 0,
            status: WorkStatus::Success,
            work: CompletedWork::Send,
            byte_length: 0,
            received: ReceivedInfo::Plain,
        };
        let slots = (config.send_wr + config.recv_wr).next_power_of_two() as usize;
        Self { ring: vec![NOTHING; slots].into_boxed_slice(), head: 0, tail: 0, receives: 0 }
    }

    /// Enlarges the ring for the granted queue sizes.
    pub(super) fn grow(&mut self, granted: &QueuePairConfig) {
        let mut grown = Self::new(granted);
        (self.head..self.tail).for_each(|position| grown.push(self.ring[self.slot(position)]));
        *self = grown;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    /// Number of completions of send requests.
    pub(super) const fn sends(&self) -> u32 {
        (self.tail - self.head) as u32 - self.receives
    }

    /// Number of completions of receives.
    pub(super) const fn receives(&self) -> u32 {
        self.receives
    }

    pub(super) fn pop(&mut self) -> Option<WorkCompletion> {
        if self.is_empty() {
            return None;
        }
        let completion = self.ring[self.slot(self.head)];
        self.head += 1;
        self.receives -= u32::from(is_receive(&completion));
        if self.is_empty() {
            // Start at the first entry again, which is in the cache: with many queue pairs, the
            // cache cannot hold all of their rings.
            (self.head, self.tail) = (0, 0);
        }
        Some(completion)
    }

    pub(super) fn push_send(&mut self, entry: &SendEntry, status: WorkStatus) {
        self.push(WorkCompletion {
            wr_id: entry.wr_id,
            status,
            work: entry.work(),
            byte_length: entry.length,
            received: ReceivedInfo::Plain,
        });
    }

    pub(super) fn push_failed_receive(&mut self, entry: &RecvEntry, status: WorkStatus) {
        let (wr_id, work) = (entry.wr_id, CompletedWork::Receive);
        self.push(WorkCompletion {
            wr_id,
            status,
            work,
            byte_length: 0,
            received: ReceivedInfo::Plain,
        });
    }

    pub(super) fn push(&mut self, completion: WorkCompletion) {
        debug_assert!(self.tail - self.head < self.ring.len() as u64, "each request has a place");
        let slot = self.slot(self.tail);
        self.ring[slot] = completion;
        self.tail += 1;
        self.receives += u32::from(is_receive(&completion));
    }

    fn slot(&self, position: u64) -> usize {
        position as usize & (self.ring.len() - 1)
    }
}

const fn is_receive(completion: &WorkCompletion) -> bool {
    matches!(completion.work, CompletedWork::Receive | CompletedWork::ReceiveWriteImmediate)
}

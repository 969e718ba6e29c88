//! The batches of the rest of an epoch.

use std::num::NonZeroU64;
use std::ops::Range;

use crate::order::Stripe;

/// The positions of batch after batch. Skipping any number of them costs the same as skipping one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batches {
    next: u64,
    end: u64,
    size: NonZeroU64,
}

impl Batches {
    pub(super) const fn new(next: u64, end: u64, size: NonZeroU64) -> Self {
        Self { next, end, size }
    }

    /// The batches that one of the workers of each rank makes.
    pub fn of_worker(self, worker: Stripe) -> impl Iterator<Item = Range<u64>> {
        self.skip(worker.index() as usize).step_by(worker.count().get() as usize)
    }

    /// The position after the batch that has a position.
    fn end_of(&self, position: u64) -> u64 {
        let begin = position - position % self.size;
        begin.saturating_add(self.size.get()).min(self.end)
    }
}

impl Iterator for Batches {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        self.nth(0)
    }

    fn nth(&mut self, skipped: usize) -> Option<Range<u64>> {
        if skipped > 0 && self.next < self.end {
            // The first batch may be the rest of one.
            let whole = (skipped as u64 - 1).saturating_mul(self.size.get());
            self.next = self.end_of(self.next).saturating_add(whole).min(self.end);
        }
        let begin = self.next;
        if begin >= self.end {
            return None;
        }
        self.next = self.end_of(begin);
        Some(begin..self.next)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let first = self.next / self.size;
        let left = self.end.div_ceil(self.size.get()).saturating_sub(first);
        let left = if self.next < self.end { left } else { 0 };
        (usize::try_from(left).unwrap_or(usize::MAX), usize::try_from(left).ok())
    }
}

//! Batches from a position to the end of an epoch.

use std::num::NonZeroU64;
use std::ops::Range;

use crate::order::Stripe;

/// Iterator over the ranges of positions of batches. Skipping any number of batches takes constant
/// time.
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

    /// Returns the batches that one of the workers of each rank prepares.
    pub fn of_worker(self, worker: Stripe) -> impl Iterator<Item = Range<u64>> {
        self.skip(worker.index() as usize).step_by(worker.count().get() as usize)
    }

    /// Returns the end of the batch that contains a position.
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
            // The first batch may be the rest of one, after a resumption within it.
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

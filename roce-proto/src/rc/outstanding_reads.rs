//! RDMA READ requests that wait for responses, and responses that came early.

use crate::Psn;
use crate::rc::READS_MAX;
use crate::rc::read_budget::ChargePeriod;

/// The RDMA READ requests that were sent and are not answered in full, oldest first. The limits of
/// each are kept, because a request that is sent again must lie within one that was sent before.
#[derive(Debug)]
pub(super) struct OutstandingReads {
    reads: [OutstandingRead; READS_MAX],
    head: usize,
    length: usize,
}

/// One RDMA READ request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutstandingRead {
    pub(super) first: Psn,
    pub(super) end: Psn,
    /// Payload bytes that each of its packets was charged for.
    pub(super) packet_bytes: u32,
    /// Period of the budget in which it was charged.
    pub(super) period: ChargePeriod,
    /// Period of the endpoint's window in which it was charged.
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

    /// The one whose responses include `psn`.
    pub(super) fn containing(&self, psn: Psn) -> Option<&OutstandingRead> {
        self.iter().find(|read| psn.is_within(read.first, read.end))
    }

    /// The first response that is still to come, when everything before `unacknowledged` is done.
    pub(super) fn first_missing(&self, unacknowledged: Psn) -> Option<Psn> {
        let read = self.front()?;
        Some(if unacknowledged.is_within(read.first, read.end) {
            unacknowledged
        } else {
            read.first
        })
    }

    /// Adds the newest; the caller has made sure that there is room.
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

/// Response packets that came before one that is still missing: one bit for each sequence number
/// from the oldest unacknowledged one on. The payload of a marked packet has been placed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Early([u64; WORDS]);

/// 512 packets: as many as the responses to 16 READs of 128 KiB at path MTU 4096 have.
const WORDS: usize = 8;

impl Early {
    /// How far ahead a response may be. No more is asked for: it would be dropped if the oldest is
    /// lost.
    pub(super) const REACH: u32 = u64::BITS * WORDS as u32;

    /// Marks the response `ahead` packets after the oldest; false if it was marked already.
    #[must_use]
    pub(super) fn mark(&mut self, ahead: u32) -> bool {
        let word = &mut self.0[(ahead / u64::BITS) as usize];
        let bit = 1 << (ahead % u64::BITS);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether the oldest has come.
    pub(super) const fn has_oldest(&self) -> bool {
        self.0[0] & 1 != 0
    }

    /// The first packets that are missing of those `from..to` after the oldest, up to one that has
    /// come.
    pub(super) fn missing_within(&self, from: u32, to: u32) -> Option<(u32, u32)> {
        let first = self.next(from, to, false);
        (first < to).then(|| (first, self.next(first, to, true)))
    }

    /// The first packet of those `from..to` after the oldest that has come, or that has not; `to`
    /// if there is none.
    fn next(&self, from: u32, to: u32, has_come: bool) -> u32 {
        let mut at = from;
        while at < to {
            let bits = self.0.get((at / u64::BITS) as usize).copied().unwrap_or(0);
            let wanted = if has_come { bits } else { !bits } >> (at % u64::BITS);
            if wanted != 0 {
                return (at + wanted.trailing_zeros()).min(to);
            }
            at += u64::BITS - at % u64::BITS;
        }
        to
    }

    /// The oldest is now `packets` later.
    pub(super) fn pass(&mut self, packets: u32) {
        let (words, bits) = ((packets / u64::BITS) as usize, packets % u64::BITS);
        let word = |from: usize| self.0.get(from).copied().unwrap_or(0);
        let shifted = core::array::from_fn(|index| {
            let low = word(index + words) >> bits;
            // A shift by all 64 bits would not be defined.
            low | word(index + words + 1) << 1 << (u64::BITS - 1 - bits)
        });
        self.0 = shifted;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::Early;

    proptest! {
        #[test]
        fn early_responses_are_a_set(
            steps in prop::collection::vec((0..Early::REACH, prop_oneof![0..3_u32, 0..700_u32]), 0..60),
            (from, to) in (0..600_u32, 0..600_u32),
        ) {
            let mut early = Early::default();
            let mut model = BTreeSet::new();
            for (ahead, passed) in steps {
                prop_assert_eq!(early.mark(ahead), model.insert(ahead));
                early.pass(passed);
                model = model.into_iter().filter_map(|at| at.checked_sub(passed)).collect();
                prop_assert_eq!(early.has_oldest(), model.contains(&0));
                let missing = (from..to).find(|at| !model.contains(at)).map(|first| {
                    (first, (first..to).find(|at| model.contains(at)).unwrap_or(to))
                });
                prop_assert_eq!(early.missing_within(from, to), missing);
            }
        }
    }
}

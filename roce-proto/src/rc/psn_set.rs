//! A set of PSNs within a sliding window.

use crate::Psn;

/// PSNs within a window of [`PsnSet::REACH`]. The owner knows where the window begins: it removes
/// the PSNs that leave the window before it adds those that enter it.
#[derive(Clone, Debug)]
pub(super) struct PsnSet {
    /// A ring of bits: that of a PSN is at its value modulo [`PsnSet::REACH`].
    words: [u64; WORDS],
    length: u32,
}

const WORDS: usize = PsnSet::REACH as usize / u64::BITS as usize;

impl PsnSet {
    /// Size of the window: 2,048 packets of 4,096 bytes fill the largest send window.
    pub(super) const REACH: u32 = 2048;

    pub(super) const fn new() -> Self {
        Self { words: [0; WORDS], length: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) const fn clear(&mut self) {
        *self = Self::new();
    }

    pub(super) const fn contains(&self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        self.words[word] & bit != 0
    }

    /// Adds a PSN; false if it was in the set.
    pub(super) const fn insert(&mut self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        // Computed by counting bits, not as the result of a comparison: rustc 1.95 miscompiles a
        // comparison that is also a condition (its pass SimplifyComparisonIntegral).
        let new = bit & !self.words[word];
        self.words[word] |= new;
        self.length += new.count_ones();
        new != 0
    }

    pub(super) const fn remove(&mut self, psn: Psn) -> bool {
        let (word, bit) = place(psn);
        let old = bit & self.words[word];
        self.words[word] &= !old;
        self.length -= old.count_ones();
        old != 0
    }

    /// Removes the PSNs `first..end`, which leave the window.
    pub(super) fn remove_range(&mut self, first: Psn, end: Psn) {
        if self.is_empty() {
            return;
        }
        if end.since(first) >= Self::REACH {
            return self.clear();
        }
        for (from, mask) in masks(first, end) {
            let (word, _) = place(from);
            let removed = self.words[word] & mask;
            self.words[word] &= !mask;
            self.length -= removed.count_ones();
        }
    }

    /// Number of PSNs of `first..end` in the set; the range is at most [`PsnSet::REACH`].
    pub(super) fn count(&self, first: Psn, end: Psn) -> u32 {
        if self.is_empty() {
            return 0;
        }
        masks(first, end).map(|(from, mask)| (self.words[place(from).0] & mask).count_ones()).sum()
    }

    /// Bitmap of the 64 PSNs from `first` on that are in the set; `first` is the lowest bit.
    pub(super) const fn word_from(&self, first: Psn) -> u64 {
        let (word, shift) = (place(first).0, first.value() % u64::BITS);
        let low = self.words[word] >> shift;
        // In two steps, since a shift by 64 is not defined.
        low | self.words[(word + 1) % WORDS] << 1 << (u64::BITS - 1 - shift)
    }

    /// The first PSN of `first..end` that is not in the set; the range is at most
    /// [`PsnSet::REACH`].
    pub(super) fn first_missing(&self, first: Psn, end: Psn) -> Option<Psn> {
        masks(first, end).find_map(|(from, mask)| {
            let bits = !self.words[place(from).0] & mask;
            let start = from.value() / u64::BITS * u64::BITS;
            (bits != 0).then(|| Psn::new(start + bits.trailing_zeros()))
        })
    }

    /// The first PSN of `first..end` that is in the set; the range is at most [`PsnSet::REACH`].
    pub(super) fn first_within(&self, first: Psn, end: Psn) -> Option<Psn> {
        if self.is_empty() {
            return None;
        }
        masks(first, end).find_map(|(from, mask)| {
            let bits = self.words[place(from).0] & mask;
            let start = from.value() / u64::BITS * u64::BITS;
            (bits != 0).then(|| Psn::new(start + bits.trailing_zeros()))
        })
    }
}

/// The word index and the bit of a PSN.
const fn place(psn: Psn) -> (usize, u64) {
    let at = psn.value() % PsnSet::REACH;
    ((at / u64::BITS) as usize, 1 << (at % u64::BITS))
}

/// The words that `first..end` covers: for each, the first PSN in it and the mask of its bits.
fn masks(first: Psn, end: Psn) -> impl Iterator<Item = (Psn, u64)> {
    let mut from = first;
    core::iter::from_fn(move || {
        let left = end.since(from);
        if left == 0 {
            return None;
        }
        let (here, shift) = (from, from.value() % u64::BITS);
        let count = left.min(u64::BITS - shift);
        from = from.plus(count);
        Some((here, u64::MAX >> (u64::BITS - count) << shift))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Regression: in a release build of rustc 1.95 the length stayed as it was.
    #[test]
    fn changes_that_are_conditions_count() {
        let mut set = PsnSet::new();
        assert!(set.insert(Psn::new(7)));
        assert!(!set.is_empty());
        assert!(set.remove(Psn::new(7)));
        assert!(set.is_empty());
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            start in 0u32..1 << 24,
            steps in prop::collection::vec((0..4, 0..PsnSet::REACH, 0..PsnSet::REACH), 0..80)
        ) {
            let mut base = Psn::new(start);
            let (mut set, mut model) = (PsnSet::new(), BTreeSet::new());
            for (what, a, b) in steps {
                match what {
                    0 => prop_assert_eq!(set.insert(base.plus(a)), model.insert(a)),
                    1 => prop_assert_eq!(set.remove(base.plus(a)), model.remove(&a)),
                    2 => {
                        let passed = a / 4;
                        set.remove_range(base, base.plus(passed));
                        base = base.plus(passed);
                        model = model.into_iter().filter_map(|at| at.checked_sub(passed)).collect();
                    }
                    _ => {}
                }
                let (first, end) = (a.min(b), a.max(b));
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert_eq!(set.contains(base.plus(b)), model.contains(&b));
                let within = model.range(first..end);
                let (from, to) = (base.plus(first), base.plus(end));
                prop_assert_eq!(set.count(from, to), within.clone().count() as u32);
                let found = set.first_within(from, to).map(|psn| psn.since(base));
                prop_assert_eq!(found, within.clone().next().copied());
                let missing = set.first_missing(from, to).map(|psn| psn.since(base));
                prop_assert_eq!(missing, (first..end).find(|at| !model.contains(at)));
                let first = first.min(PsnSet::REACH - u64::BITS);
                let word = (0..u64::BITS).map(|at| u64::from(model.contains(&(first + at))) << at);
                prop_assert_eq!(set.word_from(base.plus(first)), word.sum::<u64>());
            }
        }
    }
}

//! Sets of bytes of a region, as sorted intervals with gaps between them.

/// Sorted, disjoint intervals `start..end`. Adjacent ones are merged, so that a plan which fills a
/// buffer completely has one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalSet {
    intervals: Vec<(u64, u64)>,
}

/// Error for intervals that share bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overlapping;

impl IntervalSet {
    /// Returns the set of these intervals, in one pass if they are in ascending order, else after
    /// sorting.
    pub(crate) fn new(
        intervals: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Result<Self, Overlapping> {
        match Self::of_ascending(intervals.clone()) {
            Some(set) => Ok(set),
            None => {
                let mut sorted: Vec<_> = intervals.filter(|(start, end)| start < end).collect();
                sorted.sort_unstable();
                Self::of_ascending(sorted.into_iter()).ok_or(Overlapping)
            }
        }
    }

    /// Returns the set of the bytes that are in at least one of these intervals.
    pub(crate) fn union(intervals: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut sorted: Vec<_> = intervals.filter(|(start, end)| start < end).collect();
        sorted.sort_unstable();
        let mut intervals = Vec::<(u64, u64)>::new();
        for (start, end) in sorted {
            match intervals.last_mut() {
                Some((_, last)) if start <= *last => *last = end.max(*last),
                _ => intervals.push((start, end)),
            }
        }
        Self { intervals }
    }

    fn of_ascending(intervals: impl Iterator<Item = (u64, u64)>) -> Option<Self> {
        let mut set = Vec::<(u64, u64)>::new();
        for (start, end) in intervals.filter(|(start, end)| start < end) {
            match set.last_mut() {
                Some((_, last)) if start < *last => return None,
                Some((_, last)) if start == *last => *last = end,
                _ => set.push((start, end)),
            }
        }
        Some(Self { intervals: set })
    }

    /// Returns the first interval that is in both sets. Takes constant time if one set ends before
    /// the other begins.
    pub(crate) fn overlap(&self, other: &Self) -> Option<(u64, u64)> {
        let (first, last) = (self.intervals.first()?, self.intervals.last()?);
        let (other_first, other_last) = (other.intervals.first()?, other.intervals.last()?);
        if last.1 <= other_first.0 || other_last.1 <= first.0 {
            return None;
        }
        let (few, many) = match self.intervals.len() < other.intervals.len() {
            true => (self, other),
            false => (other, self),
        };
        let mut rest = many.intervals.as_slice();
        few.intervals.iter().find_map(|&(start, end)| {
            rest = &rest[rest.partition_point(|&(_, other_end)| other_end <= start)..];
            let &(other_start, other_end) = rest.first()?;
            (other_start < end).then(|| (start.max(other_start), end.min(other_end)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn bytes(intervals: &[(u64, u64)]) -> Vec<u64> {
        intervals.iter().flat_map(|&(start, end)| start..end).collect()
    }

    fn intervals(most: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
        vec((0u64..300, 0u64..12).prop_map(|(start, length)| (start, start + length)), 0..most)
    }

    #[test]
    fn a_buffer_that_is_filled_in_order_is_one_interval() {
        let set = IntervalSet::new((0..480).map(|row| (row * 2050, (row + 1) * 2050))).unwrap();
        assert_eq!(set.intervals, [(0, 480 * 2050)]);
    }

    #[test]
    fn intervals_at_the_end_of_the_number_space_are_intervals() {
        let last = (u64::MAX - 1, u64::MAX);
        let set = IntervalSet::new([last, (0, 1)].into_iter()).unwrap();
        assert_eq!(set.overlap(&set), Some((0, 1)));
        assert_eq!(IntervalSet::new([last, last].into_iter()), Err(Overlapping));
    }

    proptest! {
        #[test]
        fn a_set_has_the_bytes_of_its_intervals_once(given in intervals(20)) {
            let all = bytes(&given);
            let distinct: BTreeSet<u64> = all.iter().copied().collect();
            match IntervalSet::new(given.iter().copied()) {
                Ok(set) => {
                    prop_assert_eq!(all.len(), distinct.len());
                    prop_assert_eq!(bytes(&set.intervals), distinct.into_iter().collect::<Vec<_>>());
                    prop_assert!(set.intervals.windows(2).all(|pair| pair[0].1 < pair[1].0));
                }
                Err(Overlapping) => prop_assert!(distinct.len() < all.len()),
            }
        }

        #[test]
        fn a_union_has_each_byte_once(given in intervals(20)) {
            let distinct: BTreeSet<u64> = bytes(&given).into_iter().collect();
            let union = IntervalSet::union(given.iter().copied());
            prop_assert_eq!(bytes(&union.intervals), distinct.into_iter().collect::<Vec<_>>());
            prop_assert!(union.intervals.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }

        #[test]
        fn an_overlap_is_found_where_bytes_are_common(a in intervals(6), b in intervals(6)) {
            let sets = (IntervalSet::new(a.into_iter()), IntervalSet::new(b.into_iter()));
            let (Ok(a), Ok(b)) = sets else { return Ok(()) };
            let (of_a, of_b) = (bytes(&a.intervals), bytes(&b.intervals));
            let common = of_a.iter().find(|byte| of_b.contains(byte));
            prop_assert_eq!(a.overlap(&b).map(|(start, _)| start), common.copied());
            prop_assert_eq!(a.overlap(&b), b.overlap(&a));
        }
    }
}

//! Which ranges the demo reads, and in what order.

use crate::random::Random;

/// The longest range; short enough that a few of them in flight do not need much memory.
pub(crate) const RANGE_MAX_BYTES: u64 = 512 * 1024;

/// A byte range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

impl Range {
    /// Whether it begins or ends within a block of 512 bytes.
    pub(crate) fn is_unaligned(self) -> bool {
        !self.offset_bytes.is_multiple_of(512) || !self.length_bytes.is_multiple_of(512)
    }
}

/// Cuts a file into ranges that cover each byte once, shuffled. Most begin and end at no block boundary.
pub(crate) fn plan(size_bytes: u64, random: &mut Random) -> Vec<Range> {
    let mut ranges = cut(size_bytes, random);
    random.shuffle(&mut ranges);
    ranges
}

fn cut(size_bytes: u64, random: &mut Random) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut offset_bytes = 0;
    while offset_bytes < size_bytes {
        let length_bytes = length(offset_bytes, random).min(size_bytes - offset_bytes);
        ranges.push(Range { offset_bytes, length_bytes });
        offset_bytes += length_bytes;
    }
    ranges
}

/// One in sixteen is up to 4 KiB long, as records are, the others up to the maximum. One in four ends where a 4 KiB block
/// ends.
fn length(offset_bytes: u64, random: &mut Random) -> u64 {
    let most = if random.below(16) == 0 { 4096 } else { RANGE_MAX_BYTES };
    let length = 1 + random.below(most);
    let past_block = (offset_bytes + length) % 4096;
    if random.below(4) == 0 && past_block < length { length - past_block } else { length }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_is_read_once(size in 0_u64..20_000_000, seed: u64) {
            let mut ranges = plan(size, &mut Random::new(seed));
            ranges.sort_by_key(|range| range.offset_bytes);
            let mut next = 0;
            for range in ranges {
                prop_assert_eq!(range.offset_bytes, next);
                prop_assert!((1..=RANGE_MAX_BYTES).contains(&range.length_bytes));
                next += range.length_bytes;
            }
            prop_assert_eq!(next, size);
        }
    }

    #[test]
    fn a_seed_repeats_and_most_ranges_but_not_all_are_unaligned() {
        let ranges = plan(256 << 20, &mut Random::new(5));
        assert_eq!(ranges, plan(256 << 20, &mut Random::new(5)));
        assert_ne!(ranges, plan(256 << 20, &mut Random::new(6)));
        let unaligned = ranges.iter().filter(|range| range.is_unaligned()).count();
        assert!(unaligned * 2 > ranges.len() && unaligned < ranges.len());
    }
}

//! Ranges that the demo reads, in random order.

use splitmix64::SplitMix64;

/// Maximum length of a range.
pub(crate) const RANGE_MAX_BYTES: u64 = 512 * 1024;

/// A byte range of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DemoRange {
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

impl DemoRange {
    /// Whether it begins or ends within a block of 512 bytes.
    pub(crate) fn is_unaligned(self) -> bool {
        !self.offset_bytes.is_multiple_of(512) || !self.length_bytes.is_multiple_of(512)
    }
}

/// Bytes of a file whose ranges are shuffled together. The list of these ranges takes about 70 MB,
/// which bounds memory for sparse files of any size.
const WINDOW_BYTES: u64 = 1 << 40;

/// Divides a file into ranges that cover each byte once, in random order. Most of them begin and
/// end within a block.
pub(crate) fn plan(size_bytes: u64, random: SplitMix64) -> impl Iterator<Item = DemoRange> {
    plan_by_windows(size_bytes, WINDOW_BYTES, random)
}

fn plan_by_windows(
    size_bytes: u64,
    window_bytes: u64,
    mut random: SplitMix64,
) -> impl Iterator<Item = DemoRange> {
    (0..size_bytes.div_ceil(window_bytes)).flat_map(move |window| {
        let start = window * window_bytes;
        let mut ranges = cut(start, window_bytes.min(size_bytes - start), &mut random);
        random.shuffle(&mut ranges);
        ranges
    })
}

fn cut(start: u64, bytes: u64, random: &mut SplitMix64) -> Vec<DemoRange> {
    let mut ranges = Vec::new();
    let (mut offset_bytes, end) = (start, start + bytes);
    while offset_bytes < end {
        let length_bytes = length(offset_bytes, random).min(end - offset_bytes);
        ranges.push(DemoRange { offset_bytes, length_bytes });
        offset_bytes += length_bytes;
    }
    ranges
}

/// Returns a random length: 1 in 16 is at most 4 KiB, the others at most [`RANGE_MAX_BYTES`]. 1 in
/// 4 ends at a 4 KiB boundary.
fn length(offset_bytes: u64, random: &mut SplitMix64) -> u64 {
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
        fn every_byte_is_read_once(
            size in 0_u64..20_000_000,
            window in 1_000_000_u64..30_000_000,
            seed: u64,
        ) {
            let mut ranges: Vec<_> = plan_by_windows(size, window, SplitMix64::new(seed)).collect();
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
    fn a_seed_repeats_its_mostly_unaligned_ranges() {
        let plan = |seed| plan(256 << 20, SplitMix64::new(seed)).collect::<Vec<_>>();
        let ranges = plan(5);
        assert_eq!(ranges, plan(5));
        assert_ne!(ranges, plan(6));
        let unaligned = ranges.iter().filter(|range| range.is_unaligned()).count();
        assert!(unaligned * 2 > ranges.len() && unaligned < ranges.len());
    }

    #[test]
    fn a_file_of_any_length_can_be_begun() {
        let first = plan(u64::MAX, SplitMix64::new(5)).next().unwrap();
        assert!(first.offset_bytes < WINDOW_BYTES);
    }
}

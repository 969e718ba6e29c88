//! Rounding of byte ranges to whole blocks, as reads with `O_DIRECT` need them.

use core::ops::Range;

use feedrail_initiator::Entry;

/// Alignment of offset, length and memory of reads with `O_DIRECT`. Some disks need only 512 bytes;
/// none needs more than this.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Maximum length of a read. Longer ranges are read in chunks that end at multiples of this.
pub(super) const CHUNK_BYTES: u64 = 1 << 20;

/// Splits the ranges at multiples of [`CHUNK_BYTES`] in the file, so that no chunk shares a block
/// with the next chunk of its range.
pub(super) fn chunks(entries: &[Entry]) -> impl Iterator<Item = Entry> {
    entries.iter().flat_map(|entry| Chunks { rest: *entry })
}

struct Chunks {
    rest: Entry,
}

impl Iterator for Chunks {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        let Entry { length: rest, offset, .. } = self.rest;
        let room = CHUNK_BYTES - offset % CHUNK_BYTES;
        let length = rest.min(room as u32);
        let chunk = Entry { length, ..self.rest };
        self.rest.length -= length;
        self.rest.offset = offset.wrapping_add(length.into());
        self.rest.dst = self.rest.dst.wrapping_add(length.into());
        (length > 0).then_some(chunk)
    }
}

/// Byte range in the file of the blocks that contain a chunk: at most [`CHUNK_BYTES`].
pub(super) fn whole_blocks(chunk: &Entry) -> Range<u64> {
    let end = chunk.offset.saturating_add(chunk.length.into());
    chunk.offset / BLOCK_BYTES * BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) * BLOCK_BYTES
}

/// Whether offset, length and memory address of a chunk are multiples of [`BLOCK_BYTES`], so that
/// it can be read with `O_DIRECT` in place.
pub(super) fn is_aligned(chunk: &Entry, address: usize) -> bool {
    let numbers = [chunk.offset, chunk.length.into(), address as u64];
    numbers.iter().all(|number| number % BLOCK_BYTES == 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_cover_a_range_and_fit(offset in 0_u64..1 << 40, length in 1_u32..20_000_000) {
            let range = Entry { shard: 3, length, offset, dst: 77 };
            let mut next = (offset, 77);
            for chunk in chunks(&[range]) {
                prop_assert_eq!((chunk.offset, chunk.dst, chunk.shard), (next.0, next.1, 3));
                let blocks = whole_blocks(&chunk);
                prop_assert!(blocks.end - blocks.start <= CHUNK_BYTES);
                prop_assert!(blocks.start <= chunk.offset);
                let bytes = u64::from(chunk.length);
                prop_assert!(chunk.offset + bytes <= blocks.end);
                next = (chunk.offset + bytes, chunk.dst + bytes);
            }
            prop_assert_eq!(next.0, offset + u64::from(length));
        }
    }

    #[test]
    fn a_range_of_2050_bytes_takes_one_block_or_two() {
        let blocks = |offset| whole_blocks(&Entry { shard: 0, length: 2050, offset, dst: 0 });
        assert_eq!(blocks(0), 0..4096);
        assert_eq!(blocks(4095), 0..8192);
        assert_eq!(chunks(&[Entry::default()]).count(), 0);
    }
}

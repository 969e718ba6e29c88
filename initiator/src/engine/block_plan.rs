//! Splits byte ranges into commands on whole logical blocks. Pure arithmetic.

use crate::memory::bounce;

/// Block size of a namespace, and the largest transfer of a command to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    block_bytes: u64,
    max_transfer_bytes: u64,
}

/// One command of a range, and the memory that it transfers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockStep {
    /// First logical block, the SLBA field.
    pub(crate) slba: u64,
    /// Number of logical blocks; the NLB field is one less.
    pub(crate) blocks: u32,
    /// Bytes of the range that this step covers; the next step begins after them.
    pub(crate) length_bytes: u64,
    pub(crate) place: TransferMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransferMemory {
    /// The caller's memory: this part of the range consists of whole blocks.
    Direct,
    /// A bounce chunk, since this part of the range begins or ends within a block.
    Bounce {
        /// Bytes of the first block before the range.
        skip_bytes: u64,
    },
}

impl Geometry {
    /// Largest transfer with a keyed descriptor: the power of two below its limit of 2^24 - 1
    /// bytes. NVMe over RDMA Transport, "Keyed SGL Data Block descriptor".
    const DESCRIPTOR_MAX_BYTES: u64 = 8 << 20;
    /// Most blocks of a command: NLB is a zero-based 16-bit field.
    const COMMAND_MAX_BLOCKS: u64 = 1 << 16;

    /// Returns the limits for blocks of `block_bytes`, a power of two of at most
    /// [`bounce::CHUNK_BYTES`], and the controller's limit `max_transfer_bytes`. `None` if a
    /// command cannot transfer a single block.
    pub(crate) fn new(block_bytes: u64, max_transfer_bytes: u64) -> Option<Self> {
        let fits = block_bytes.is_power_of_two() && block_bytes <= bounce::CHUNK_BYTES as u64;
        let most = max_transfer_bytes
            .min(Self::DESCRIPTOR_MAX_BYTES)
            .min(Self::COMMAND_MAX_BLOCKS.saturating_mul(block_bytes));
        let max_transfer_bytes = most & !block_bytes.wrapping_sub(1);
        (fits && max_transfer_bytes > 0).then_some(Self { block_bytes, max_transfer_bytes })
    }

    /// Returns the size of a logical block in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Returns the first step of the non-empty byte range `start..end`.
    ///
    /// Whole blocks are transferred directly to or from the caller's memory. A short range with a
    /// partial block at either end takes one bounced command, since a copy costs less than two more
    /// commands; of a longer range only the partial blocks are bounced.
    pub(crate) fn next_step(&self, start: u64, end: u64) -> BlockStep {
        debug_assert!(start < end);
        let (first, behind) = (self.floor(start), self.ceil(end));
        let aligned = first == start && behind == end;
        if !aligned && behind - first <= self.bounce_whole_bytes() {
            self.bounced(start, end)
        } else if first != start {
            self.bounced(start, end.min(first + self.block_bytes))
        } else if self.floor(end) == start {
            self.bounced(start, end)
        } else {
            self.direct(start, end)
        }
    }

    /// Returns the logical blocks that `start..end` overlaps.
    pub(crate) fn blocks_of(&self, start: u64, end: u64) -> core::ops::Range<u64> {
        start / self.block_bytes..self.ceil(end) / self.block_bytes
    }

    /// Returns whether `start..end` consists of whole blocks.
    pub(crate) fn is_aligned(&self, start: u64, end: u64) -> bool {
        (start | end) & (self.block_bytes - 1) == 0
    }

    fn bounced(&self, start: u64, end: u64) -> BlockStep {
        let (first, behind) = (self.floor(start), self.ceil(end));
        BlockStep {
            slba: first / self.block_bytes,
            blocks: block_count((behind - first) / self.block_bytes),
            length_bytes: end - start,
            place: TransferMemory::Bounce { skip_bytes: start - first },
        }
    }

    fn direct(&self, start: u64, end: u64) -> BlockStep {
        let length_bytes = (self.floor(end) - start).min(self.max_transfer_bytes);
        BlockStep {
            slba: start / self.block_bytes,
            blocks: block_count(length_bytes / self.block_bytes),
            length_bytes,
            place: TransferMemory::Direct,
        }
    }

    fn bounce_whole_bytes(&self) -> u64 {
        bounce::WHOLE_RANGE_BYTES.min(self.max_transfer_bytes)
    }

    fn floor(&self, byte: u64) -> u64 {
        byte & !(self.block_bytes - 1)
    }

    /// Does not overflow: ranges end within a namespace, whose size in bytes is a multiple of the
    /// block size and fits 64 bits.
    fn ceil(&self, byte: u64) -> u64 {
        self.floor(byte.saturating_add(self.block_bytes - 1))
    }
}

fn block_count(blocks: u64) -> u32 {
    u32::try_from(blocks).expect("a command has at most 2^16 blocks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn steps(geometry: Geometry, start: u64, end: u64) -> Vec<(u64, BlockStep)> {
        let mut at = start;
        let mut all = Vec::new();
        while at < end {
            let step = geometry.next_step(at, end);
            all.push((at, step));
            at += step.length_bytes;
        }
        assert_eq!(at, end);
        all
    }

    #[test]
    fn aligned_ranges_are_split_at_the_transfer_limit() {
        let geometry = Geometry::new(512, 128 << 10).unwrap();
        let all = steps(geometry, 0, 300 << 10);
        let lengths: Vec<_> = all.iter().map(|(_, step)| step.length_bytes >> 10).collect();
        assert_eq!(lengths, [128, 128, 44]);
        assert!(all.iter().all(|(_, step)| step.place == TransferMemory::Direct));
    }

    #[test]
    fn a_short_unaligned_range_is_one_command() {
        let geometry = Geometry::new(512, 128 << 10).unwrap();
        let step = geometry.next_step(1, 2);
        assert_eq!((step.slba, step.blocks, step.length_bytes), (0, 1, 1));
        assert_eq!(step.place, TransferMemory::Bounce { skip_bytes: 1 });
        assert_eq!(steps(geometry, 511, 8000).len(), 1);
    }

    #[test]
    fn a_long_unaligned_range_bounces_its_edges_only() {
        let geometry = Geometry::new(4096, 1 << 20).unwrap();
        let all = steps(geometry, 100, (256 << 10) + 7);
        let bounced: u64 = all
            .iter()
            .filter(|(_, step)| step.place != TransferMemory::Direct)
            .map(|(_, step)| step.length_bytes)
            .sum();
        assert_eq!((all.len(), bounced), (3, 4096 - 100 + 7));
    }

    #[test]
    fn geometries_that_cannot_work_are_refused() {
        assert_eq!(Geometry::new(0, 4096), None);
        assert_eq!(Geometry::new(513, 4096), None);
        assert_eq!(Geometry::new(8192, 4096), None);
        assert_eq!(Geometry::new(1 << 40, u64::MAX), None);
        assert!(Geometry::new(512, u64::MAX).is_some());
    }

    proptest! {
        #[test]
        fn steps_cover_the_range_within_the_limits(
            block_shift in 0u32..=16,
            transfer_shift in 0u32..=8,
            start in 0u64..(1 << 40),
            length in 1u64..(4 << 20),
        ) {
            let block = 1u64 << block_shift;
            let limit = (block << transfer_shift).max(4096);
            let geometry = Geometry::new(block, limit).unwrap();
            for (at, step) in steps(geometry, start, start + length) {
                let (first, span) = (step.slba * block, u64::from(step.blocks) * block);
                prop_assert!(step.length_bytes > 0 && step.blocks > 0);
                prop_assert!(span <= limit && u64::from(step.blocks) <= 65536 && span < 1 << 24);
                prop_assert!(first <= at && at + step.length_bytes <= first + span);
                match step.place {
                    TransferMemory::Direct => prop_assert!(first == at && span == step.length_bytes),
                    TransferMemory::Bounce { skip_bytes } => {
                        prop_assert_eq!(first + skip_bytes, at);
                        prop_assert!(span <= bounce::CHUNK_BYTES as u64);
                        // No block is transferred for nothing.
                        prop_assert!(skip_bytes < block && first + span - (at + step.length_bytes) < block);
                    }
                }
            }
        }

        #[test]
        fn whole_blocks_of_long_ranges_are_never_copied(start in 0u64..(1 << 30), length in (64u64 << 10)..(4 << 20)) {
            let geometry = Geometry::new(4096, 1 << 20).unwrap();
            let copied: u64 = steps(geometry, start, start + length)
                .iter()
                .filter(|(_, step)| step.place != TransferMemory::Direct)
                .map(|(_, step)| step.length_bytes)
                .sum();
            prop_assert!(copied < 2 * 4096 || copied <= bounce::WHOLE_RANGE_BYTES + 4096);
        }

        #[test]
        fn blocks_of_is_what_the_steps_touch(start in 0u64..(1 << 30), length in 1u64..(1 << 20)) {
            let geometry = Geometry::new(512, 64 << 10).unwrap();
            let touched = geometry.blocks_of(start, start + length);
            let all = steps(geometry, start, start + length);
            prop_assert_eq!(all[0].1.slba, touched.start);
            let last = all[all.len() - 1].1;
            prop_assert_eq!(last.slba + u64::from(last.blocks), touched.end);
        }
    }
}

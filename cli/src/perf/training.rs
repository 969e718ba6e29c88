//! The reads of training jobs: sizes, alignment and order of well-known benchmarks, not their
//! computing.
//!
//! Sizes are those that MLPerf Storage's configurations for DLIO and nanoGPT's loader have; nothing
//! here is comparable with results of those.

use clap::ValueEnum;
use splitmix64::SplitMix64;

use super::workload::{IoDirection, PerfIo};
use crate::training_data::{GROUP_BYTES, SampleSizes, TOKEN_BYTES, WINDOW_BYTES, group_columns};

/// A training job's way of reading, named after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Training {
    /// Windows of 1,025 tokens of two bytes, anywhere
    #[value(name = "nanogpt-2050")]
    Nanogpt,
    /// Samples of 114,660 bytes behind each other, in random order
    Resnet50,
    /// JPEG files of 322,957 bytes, in random order
    Retinanet,
    /// Samples of about 2.8 MB, in random order
    Cosmoflow,
    /// Samples of about 9.2 MB that differ much (a sixteenth of the original's), in random order
    Unet3d,
    /// 40 of the 200 columns of a row group, one row group after the other in random order
    Dlrm,
    /// Shards of 256 MB in random order, each from its beginning to its end in pieces of 4 MiB
    WebdatasetSeq,
}

/// Bytes of a WebDataset shard, and of each read of it.
const SHARD_BYTES: u64 = 256_000_000;
const PIECE_BYTES: u64 = 4 << 20;

impl Training {
    /// Name on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    fn shape(self) -> Shape {
        match self {
            Self::Nanogpt => Shape::Windows,
            Self::Resnet50 => Shape::Samples(SampleSizes::RESNET50),
            Self::Retinanet => Shape::Samples(SampleSizes::RETINANET),
            Self::Cosmoflow => Shape::Samples(SampleSizes::COSMOFLOW),
            Self::Unet3d => Shape::Samples(SampleSizes::UNET3D.scaled_down(16)),
            Self::Dlrm => Shape::Columns,
            Self::WebdatasetSeq => Shape::Shards,
        }
    }

    /// Bytes of the longest range that the job reads.
    pub(crate) fn longest_bytes(self) -> u64 {
        match self.shape() {
            Shape::Windows => WINDOW_BYTES,
            Shape::Samples(sizes) => sizes.longest_bytes(),
            Shape::Columns => group_columns().map(|(_, bytes)| bytes).max().unwrap_or(0),
            Shape::Shards => PIECE_BYTES,
        }
    }

    /// Endless sequence of ranges of one job within `size_bytes`; `None` if no unit fits.
    pub(crate) fn ranges(self, size_bytes: u64, job: u64, seed: u64) -> Option<Ranges> {
        let shape = self.shape();
        let units = match shape {
            Shape::Windows => size_bytes.checked_sub(WINDOW_BYTES)? / TOKEN_BYTES + 1,
            Shape::Samples(_) => size_bytes / self.longest_bytes(),
            Shape::Columns => size_bytes / GROUP_BYTES,
            // A namespace smaller than a shard counts as one shard.
            Shape::Shards => (size_bytes / SHARD_BYTES).max(u64::from(size_bytes >= PIECE_BYTES)),
        };
        let random = SplitMix64::new(seed.wrapping_add(job.wrapping_mul(0x5851_F42D_4C95_7F2D)));
        (units > 0).then_some(Ranges { shape, size_bytes, units, unit: 0, part: 0, random })
    }
}

#[derive(Clone, Copy, Debug)]
enum Shape {
    Windows,
    /// One range for each sample, in slots as long as the longest sample.
    Samples(SampleSizes),
    Columns,
    Shards,
}

/// Endless sequence of byte ranges that one job reads.
#[derive(Debug)]
pub(crate) struct Ranges {
    shape: Shape,
    size_bytes: u64,
    /// Number of windows, samples, row groups or shards to choose from.
    units: u64,
    /// Unit that is being read, and the number of its next part.
    unit: u64,
    part: u64,
    random: SplitMix64,
}

impl Iterator for Ranges {
    type Item = PerfIo;

    fn next(&mut self) -> Option<PerfIo> {
        let (offset_bytes, length_bytes) = match self.shape {
            Shape::Windows => (self.random.below(self.units) * TOKEN_BYTES, WINDOW_BYTES),
            Shape::Samples(sizes) => {
                let length = sizes.draw(&mut self.random);
                (self.random.below(self.units) * sizes.longest_bytes(), length)
            }
            Shape::Columns => self.column(),
            Shape::Shards => self.piece(),
        };
        Some(PerfIo { direction: IoDirection::Read, offset_bytes, length_bytes })
    }
}

impl Ranges {
    /// Returns the next column chunk of a row group: every fifth column is read.
    fn column(&mut self) -> (u64, u64) {
        let column = self.next_part(group_columns().len() as u64);
        let (offset, bytes) = group_columns().nth(column as usize).unwrap_or_default();
        (self.unit * GROUP_BYTES + offset, bytes)
    }

    fn piece(&mut self) -> (u64, u64) {
        let shard_bytes = SHARD_BYTES.min(self.size_bytes);
        let piece = self.next_part(shard_bytes.div_ceil(PIECE_BYTES));
        let start = piece * PIECE_BYTES;
        (self.unit * shard_bytes + start, PIECE_BYTES.min(shard_bytes - start))
    }

    /// Returns the number of the next part: of the same unit, or at its end the first part of a
    /// random unit.
    fn next_part(&mut self, parts: u64) -> u64 {
        let part = self.part;
        if part == 0 {
            self.unit = self.random.below(self.units);
        }
        self.part = (part + 1) % parts;
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training_data::GROUP_ROWS;

    const SIZE: u64 = 1 << 30;

    fn ranges(training: Training) -> impl Iterator<Item = PerfIo> {
        training.ranges(SIZE, 0, 1).unwrap().take(10_000)
    }

    #[test]
    fn ranges_stay_within_size_and_longest_length() {
        for training in Training::value_variants() {
            for io in ranges(*training) {
                assert!(
                    io.length_bytes > 0 && io.length_bytes <= training.longest_bytes(),
                    "{io:?}"
                );
                assert!(io.offset_bytes + io.length_bytes <= SIZE, "{training:?}: {io:?}");
            }
            assert!(training.ranges(1000, 0, 1).is_none(), "{training:?}");
        }
    }

    #[test]
    fn windows_begin_at_tokens_not_at_blocks() {
        assert!(ranges(Training::Nanogpt).all(|io| io.offset_bytes % 2 == 0));
        let aligned = ranges(Training::Nanogpt).filter(|io| io.offset_bytes % 512 == 0).count();
        assert!(aligned < 200, "{aligned}");
    }

    #[test]
    fn a_row_group_is_read_before_the_next() {
        let first: Vec<PerfIo> = ranges(Training::Dlrm).take(40).collect();
        assert_eq!(first.iter().map(|io| io.length_bytes).sum::<u64>(), 160 * GROUP_ROWS);
        let group = |io: &PerfIo| io.offset_bytes / GROUP_BYTES;
        assert!(first.iter().all(|io| group(io) == group(&first[0])));
    }

    #[test]
    fn a_shard_is_read_in_order() {
        let pieces: Vec<PerfIo> = ranges(Training::WebdatasetSeq).take(62).collect();
        assert_eq!(pieces.iter().map(|io| io.length_bytes).sum::<u64>(), SHARD_BYTES);
        let follows =
            |pair: &[PerfIo]| pair[0].offset_bytes + pair[0].length_bytes == pair[1].offset_bytes;
        assert!(pieces.windows(2).all(follows));
    }
}

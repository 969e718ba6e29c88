//! Sequence of I/Os of a job, in fio's terms.

use clap::ValueEnum;
use splitmix64::SplitMix64;

/// Access pattern, named as in fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// Reads at ascending offsets
    Read,
    /// Writes at ascending offsets
    Write,
    /// Reads at random offsets
    Randread,
    /// Writes at random offsets
    Randwrite,
    /// Sequential reads and writes, mixed
    Rw,
    /// Random reads and writes, mixed
    Randrw,
}

impl Pattern {
    pub(crate) fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Randread)
    }

    fn reads(self) -> bool {
        !matches!(self, Self::Write | Self::Randwrite)
    }

    fn random(self) -> bool {
        matches!(self, Self::Randread | Self::Randwrite | Self::Randrw)
    }

    /// Name in fio's output.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Randread => "randread",
            Self::Randwrite => "randwrite",
            Self::Rw => "rw",
            Self::Randrw => "randrw",
        }
    }
}

/// Whether an I/O reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoDirection {
    Read,
    Write,
}

/// I/O that a job is to perform.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PerfIo {
    pub(crate) direction: IoDirection,
    pub(crate) offset_bytes: u64,
    pub(crate) length_bytes: u64,
}

/// Endless sequence of I/Os of one job.
#[derive(Debug)]
pub(crate) struct Workload {
    pattern: Pattern,
    read_percent: u8,
    block_bytes: u64,
    blocks: u64,
    next_block: u64,
    random: SplitMix64,
}

impl Workload {
    /// Creates a sequence of I/Os on blocks of `block_bytes` within the first `size_bytes`; `None`
    /// if not one block fits. Sequential jobs start evenly spread, so that they do not read the
    /// same blocks at the same time.
    pub(crate) fn new(
        pattern: Pattern,
        read_percent: u8,
        block_bytes: u64,
        size_bytes: u64,
        job: u64,
        jobs: u64,
        seed: u64,
    ) -> Option<Self> {
        let blocks = size_bytes.checked_div(block_bytes).filter(|blocks| *blocks > 0)?;
        let next_block = (u128::from(blocks) * u128::from(job) / u128::from(jobs)) as u64 % blocks;
        let random = SplitMix64::new(seed.wrapping_add(job.wrapping_mul(0x5851_F42D_4C95_7F2D)));
        Some(Self { pattern, read_percent, block_bytes, blocks, next_block, random })
    }

    fn direction(&mut self) -> IoDirection {
        let reads = if self.pattern.reads() && self.pattern.writes() {
            self.random.below(100) < u64::from(self.read_percent)
        } else {
            self.pattern.reads()
        };
        if reads { IoDirection::Read } else { IoDirection::Write }
    }

    fn block(&mut self) -> u64 {
        if self.pattern.random() {
            return self.random.below(self.blocks);
        }
        let block = self.next_block;
        self.next_block = (block + 1) % self.blocks;
        block
    }
}

impl Iterator for Workload {
    type Item = PerfIo;

    fn next(&mut self) -> Option<PerfIo> {
        let (direction, length_bytes) = (self.direction(), self.block_bytes);
        Some(PerfIo { direction, offset_bytes: self.block() * self.block_bytes, length_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(pattern: Pattern, job: u64) -> Workload {
        Workload::new(pattern, 70, 4096, 40_960 + 100, job, 2, 1).unwrap()
    }

    #[test]
    fn sequential_wraps_and_never_leaves_the_size() {
        let mut second_of_two = workload(Pattern::Read, 1);
        let offsets: Vec<u64> =
            second_of_two.by_ref().take(11).map(|io| io.offset_bytes / 4096).collect();
        assert_eq!(offsets, [5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn random_blocks_are_whole_and_reach_all() {
        let mut random = workload(Pattern::Randread, 0);
        let mut seen = [0; 10];
        for _ in 0..1000 {
            let io = random.next().unwrap();
            assert_eq!((io.direction, io.offset_bytes % 4096), (IoDirection::Read, 0));
            seen[(io.offset_bytes / 4096) as usize] += 1;
        }
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
    }

    #[test]
    fn a_mix_keeps_its_ratio() {
        let mut mixed = workload(Pattern::Randrw, 0);
        let reads =
            mixed.by_ref().take(10_000).filter(|io| io.direction == IoDirection::Read).count();
        assert!((6800..7200).contains(&reads), "{reads}");
    }

    #[test]
    fn jobs_of_one_seed_differ() {
        let offsets = |job| {
            workload(Pattern::Randread, job).take(32).map(|io| io.offset_bytes).collect::<Vec<_>>()
        };
        assert_eq!(offsets(0), offsets(0));
        assert_ne!(offsets(0), offsets(1));
    }

    #[test]
    fn a_size_below_one_block_is_refused() {
        assert!(Workload::new(Pattern::Read, 50, 4096, 4095, 0, 1, 0).is_none());
        assert!(Workload::new(Pattern::Read, 50, 0, 4095, 0, 1, 0).is_none());
    }
}

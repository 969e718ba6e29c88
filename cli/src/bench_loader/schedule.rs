//! Batches that each rank reads in a turn. All ways to read share them.

use anyhow::{Result, ensure};

use super::order::{EpochOrder, LoaderOrder};
use super::samples::{LimitedSet, SampleBatch};
use super::shape::{LoaderShape, SampleLayout};
use splitmix64::SplitMix64;

/// Maximum number of ranges in a turn: each takes 24 bytes of memory.
const MAX_RANGES: usize = 20_000_000;

/// The batches of a turn.
pub(super) struct Schedule {
    ranks: Vec<Vec<SampleBatch>>,
}

impl Schedule {
    /// Distributes the units to the ranks round-robin, in an order that the seed determines.
    ///
    /// # Errors
    /// There are fewer samples than one step takes, or more ranges than fit into memory.
    pub(super) fn new(
        set: &LimitedSet,
        shape: &LoaderShape,
        ranks: u16,
        steps: u32,
        seed: u64,
    ) -> Result<Self> {
        let units = set.units();
        let needed = shape.units_read_for_batch(0).saturating_mul(ranks.into());
        ensure!(
            needed <= units,
            "one step takes {needed} samples or row groups, and there are {units}: lower \
             --batch-size or --ranks"
        );
        let mut order = order(set, shape, seed)?;
        let mut batches: Vec<Vec<SampleBatch>> = (0..ranks).map(|_| Vec::new()).collect();
        let mut ranges: usize = 0;
        for step in 0..u64::from(steps) {
            let units_of_rank = usize::try_from(shape.units_read_for_batch(step))?;
            let dealt = units_of_rank.saturating_mul(batches.len());
            ensure!(ranges.saturating_add(dealt) <= MAX_RANGES, "too many ranges: lower --steps");
            let dealt: Vec<u64> = order.by_ref().take(dealt).collect();
            for (rank, batches) in batches.iter_mut().enumerate() {
                let own = dealt.iter().skip(rank).step_by(ranks.into()).copied();
                let batch = set.batch(own);
                ranges += batch.entries.len();
                batches.push(batch);
            }
        }
        Ok(Self { ranks: batches })
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = &[SampleBatch]> {
        self.ranks.iter().map(Vec::as_slice)
    }

    /// Bytes of the largest batch, which is the size of each buffer.
    pub(super) fn largest_bytes(&self) -> u64 {
        self.ranks.iter().flatten().map(|batch| batch.bytes).max().unwrap_or(0)
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.ranks.iter().flatten().map(|batch| batch.bytes).sum()
    }
}

fn order(set: &LimitedSet, shape: &LoaderShape, seed: u64) -> Result<LoaderOrder> {
    Ok(match shape.layout {
        SampleLayout::Windows => {
            LoaderOrder::Anywhere { numbers: set.units(), random: SplitMix64::new(seed) }
        }
        _ => LoaderOrder::Epochs(Box::new(EpochOrder::new(set.units(), seed)?)),
    })
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::collections::BTreeSet;

    use super::super::samples::SampleSet;
    use super::*;
    use crate::training_data::SampleSizes;

    const SHAPE: LoaderShape = LoaderShape {
        layout: SampleLayout::Packed(SampleSizes::equal(10)),
        batch_samples: 4,
        compute: Duration::ZERO,
    };

    fn schedule(bytes: u64, ranks: u16, steps: u32, seed: u64) -> Result<Schedule> {
        let set = SampleSet::laid_out(SHAPE.layout, &[bytes], seed)?.truncated(None);
        Schedule::new(&set, &SHAPE, ranks, steps, seed)
    }

    fn offsets(schedule: &Schedule) -> Vec<u64> {
        let batches = schedule.ranks().flatten();
        batches.flat_map(|batch| batch.entries.iter().map(|entry| entry.offset)).collect()
    }

    #[test]
    fn ranks_share_an_epoch() {
        let schedule = schedule(240, 2, 3, 9).unwrap();
        let offsets = offsets(&schedule);
        assert_eq!(offsets.len(), 24);
        assert_eq!(offsets.iter().collect::<BTreeSet<_>>().len(), 24, "{offsets:?}");
        assert_eq!((schedule.largest_bytes(), schedule.total_bytes()), (40, 240));
    }

    #[test]
    fn the_seed_decides_and_world_size_does_not() {
        let sorted = |ranks, steps, seed| {
            let mut offsets = offsets(&schedule(240, ranks, steps, seed).unwrap());
            offsets.sort_unstable();
            offsets
        };
        assert_eq!(sorted(1, 4, 5), sorted(4, 1, 5));
        assert_ne!(sorted(1, 4, 5), sorted(1, 4, 6));
    }

    #[test]
    fn a_step_that_has_too_few_samples_is_refused() {
        assert!(schedule(79, 2, 1, 0).is_err());
        assert!(schedule(80, 2, 9, 0).is_ok(), "nine epochs");
    }
}

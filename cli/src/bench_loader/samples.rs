//! Positions of the samples in the shards.

use anyhow::{Context as _, Result, ensure};
use feedrail_dataset::Sample;
use feedrail_dataset::index::{Index, IndexShard};
use feedrail_initiator::Entry;
use splitmix64::SplitMix64;

use super::shape::SampleLayout;
use crate::training_data::{GROUP_BYTES, SampleSizes, TOKEN_BYTES, WINDOW_BYTES, group_columns};

/// Maximum number of samples of different lengths: each takes 20 bytes of memory.
const MAX_DRAWN: usize = 50_000_000;

/// Samples of a data set. A unit is what is read together: one sample, or a row group.
pub(super) enum SampleSet {
    /// Samples of an index file.
    Indexed {
        index: Index<Vec<u8>>,
        /// Number of each shard of the index among the shards that are read; `None` if it is not
        /// among them.
        shards: Vec<Option<u32>>,
    },
    /// Adjacent samples of randomly drawn lengths.
    Drawn(Vec<Sample>),
    /// Samples at equal distances.
    Regular(RegularUnits),
}

/// Units at equal distances from the start of each shard.
pub(super) struct RegularUnits {
    /// Running total of units at the end of each shard.
    ends: Vec<u64>,
    distance_bytes: u64,
    /// Ranges that are read of a unit: offset from the start of the unit, and length, in bytes.
    ranges: Vec<(u64, u32)>,
}

/// Ranges that are read into one buffer, one behind the other.
#[derive(Debug, Default)]
pub(super) struct SampleBatch {
    pub(super) entries: Vec<Entry>,
    pub(super) bytes: u64,
}

impl SampleBatch {
    fn push(&mut self, shard: u32, offset: u64, length: u32) {
        self.entries.push(Entry { shard, length, offset, dst: self.bytes });
        self.bytes += u64::from(length);
    }
}

impl SampleSet {
    /// Parses an index and checks that its samples lie within the shards.
    pub(super) fn indexed(file: Vec<u8>, found: &[IndexShard]) -> Result<Self> {
        let index = Index::parse(file)?;
        let (shards, shard_bytes) = match index.shards() {
            Some(table) => (table.numbers_in(found)?, table.shard_bytes()),
            None => (
                (0..).zip(found).map(|(number, _)| Some(number)).collect(),
                found.iter().map(|shard| shard.bytes).collect(),
            ),
        };
        index.check(&shard_bytes)?;
        ensure!(!index.is_empty(), "the index has no samples");
        Ok(Self::Indexed { index, shards })
    }

    /// Places samples in all shards. The seed determines their lengths where these differ.
    pub(super) fn laid_out(layout: SampleLayout, shard_bytes: &[u64], seed: u64) -> Result<Self> {
        let set = match layout {
            SampleLayout::Packed(sizes) if sizes.deviation_bytes > 0 => {
                Self::Drawn(draw(sizes, shard_bytes, seed)?)
            }
            _ => Self::Regular(RegularUnits::new(layout, shard_bytes)?),
        };
        ensure!(set.units() > 0, "no shard is long enough for one sample");
        Ok(set)
    }

    /// Limits the set to its first `units` units; `None` keeps all.
    pub(super) fn truncated(self, units: Option<u64>) -> LimitedSet {
        let units = units.map_or(self.units(), |limit| limit.min(self.units()));
        LimitedSet { set: self, units }
    }

    fn units(&self) -> u64 {
        match self {
            Self::Indexed { index, .. } => index.len(),
            Self::Drawn(samples) => samples.len() as u64,
            Self::Regular(regular) => regular.ends.last().copied().unwrap_or(0),
        }
    }

    fn add(&self, unit: u64, batch: &mut SampleBatch) {
        let (samples, shards) = match self {
            Self::Indexed { index, shards } => (index.samples(), Some(shards)),
            Self::Drawn(samples) => (&samples[..], None),
            Self::Regular(regular) => return regular.add(unit, batch),
        };
        let Some(sample) = samples.get(unit as usize) else { return };
        let own = sample.shard.get();
        let there = shards.map_or(Some(own), |there| there.get(own as usize).copied().flatten());
        if let Some(shard) = there {
            batch.push(shard, sample.offset.get(), sample.length.get());
        }
    }
}

/// The first units of a data set.
pub(super) struct LimitedSet {
    set: SampleSet,
    units: u64,
}

impl LimitedSet {
    /// Number of units, at least 1.
    pub(super) fn units(&self) -> u64 {
        self.units
    }

    /// Returns the ranges of the units with these numbers.
    pub(super) fn batch(&self, units: impl IntoIterator<Item = u64>) -> SampleBatch {
        let mut batch = SampleBatch::default();
        for unit in units {
            self.set.add(unit, &mut batch);
        }
        batch
    }
}

impl RegularUnits {
    fn new(layout: SampleLayout, shard_bytes: &[u64]) -> Result<Self> {
        let (distance_bytes, span_bytes, ranges) = match layout {
            SampleLayout::Packed(SampleSizes { mean_bytes: bytes, .. }) => {
                (bytes, bytes, vec![(0, length(bytes)?)])
            }
            SampleLayout::Windows => (TOKEN_BYTES, WINDOW_BYTES, vec![(0, length(WINDOW_BYTES)?)]),
            SampleLayout::RowGroups => {
                let column = |(offset, bytes)| Ok((offset, length(bytes)?));
                (GROUP_BYTES, GROUP_BYTES, group_columns().map(column).collect::<Result<_>>()?)
            }
        };
        ensure!(distance_bytes > 0, "a sample has at least 1 byte");
        let mut end: u64 = 0;
        let mut ends = Vec::with_capacity(shard_bytes.len());
        for &bytes in shard_bytes {
            let last = bytes.checked_sub(span_bytes);
            end = end.saturating_add(last.map_or(0, |last| last / distance_bytes + 1));
            ends.push(end);
        }
        Ok(Self { ends, distance_bytes, ranges })
    }

    fn add(&self, unit: u64, batch: &mut SampleBatch) {
        let shard = self.ends.partition_point(|&end| end <= unit);
        let first = shard.checked_sub(1).map_or(0, |before| self.ends[before]);
        let begin = (unit - first) * self.distance_bytes;
        for &(offset, length) in &self.ranges {
            batch.push(shard as u32, begin + offset, length);
        }
    }
}

fn length(bytes: u64) -> Result<u32> {
    u32::try_from(bytes).context("a sample has less than 4 GiB")
}

fn draw(sizes: SampleSizes, shard_bytes: &[u64], seed: u64) -> Result<Vec<Sample>> {
    length(sizes.longest_bytes())?;
    let mut random = SplitMix64::new(seed);
    let mut samples = Vec::new();
    for (shard, &bytes) in (0_u32..).zip(shard_bytes) {
        let mut offset: u64 = 0;
        loop {
            let length = sizes.draw(&mut random);
            if length > bytes - offset {
                break;
            }
            ensure!(
                samples.len() < MAX_DRAWN,
                "more than {MAX_DRAWN} samples of different lengths: make an index of them"
            );
            let (shard, length_field) = (shard.into(), (length as u32).into());
            let crc32c = 0.into();
            samples.push(Sample { shard, length: length_field, offset: offset.into(), crc32c });
            offset += length;
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use feedrail_dataset::index::IndexWriter;

    use super::*;

    fn laid_out(layout: SampleLayout, shard_bytes: &[u64]) -> Result<LimitedSet> {
        Ok(SampleSet::laid_out(layout, shard_bytes, 1)?.truncated(None))
    }

    fn places(set: &LimitedSet) -> Vec<(u32, u64, u32)> {
        let entries = set.batch(0..set.units()).entries;
        entries.iter().map(|entry| (entry.shard, entry.offset, entry.length)).collect()
    }

    #[test]
    fn equal_samples_stay_within_their_shards() {
        let layout = SampleLayout::Packed(SampleSizes::equal(100));
        let set = laid_out(layout, &[250, 99, 300]).unwrap();
        let expected = [(0, 0), (0, 100), (2, 0), (2, 100), (2, 200)];
        assert_eq!(places(&set), expected.map(|(shard, offset)| (shard, offset, 100)));
        assert!(laid_out(layout, &[99]).is_err());
        assert!(laid_out(SampleLayout::Packed(SampleSizes::equal(0)), &[99]).is_err());
        assert!(laid_out(SampleLayout::Packed(SampleSizes::equal(1 << 32)), &[1 << 40]).is_err());
    }

    #[test]
    fn windows_begin_at_each_token() {
        let set = laid_out(SampleLayout::Windows, &[2055]).unwrap();
        assert_eq!(places(&set), [(0, 0, 2050), (0, 2, 2050), (0, 4, 2050)]);
    }

    #[test]
    fn a_row_group_is_its_columns() {
        let set = laid_out(SampleLayout::RowGroups, &[2 * GROUP_BYTES + 5]).unwrap();
        assert_eq!(set.units(), 2);
        let batch = set.batch([1]);
        assert_eq!((batch.entries.len(), batch.bytes), (40, 160 * 6144));
        assert_eq!(batch.entries[0].offset, GROUP_BYTES);
        assert_eq!(batch.entries[1].dst, u64::from(batch.entries[0].length));
    }

    #[test]
    fn drawn_samples_follow_each_other() {
        let sizes = SampleSizes { mean_bytes: 1000, deviation_bytes: 500 };
        let set = laid_out(SampleLayout::Packed(sizes), &[20_000, 500, 30_000]).unwrap();
        let places = places(&set);
        assert!(places.len() > 20, "{places:?}");
        for pair in places.windows(2) {
            let (before, after) = (pair[0], pair[1]);
            let follows = before.1 + u64::from(before.2);
            assert_eq!(after.1, if before.0 == after.0 { follows } else { 0 });
        }
    }

    #[test]
    fn an_index_must_fit_its_shards() {
        let sample = |offset: u64| Sample {
            shard: 0.into(),
            length: 10.into(),
            offset: offset.into(),
            crc32c: 0.into(),
        };
        let mut writer = IndexWriter::new(std::io::Cursor::new(Vec::new())).unwrap();
        writer.append(&[sample(5), sample(90)]).unwrap();
        let file = writer.finish().unwrap().into_inner();
        let shards = |bytes| [IndexShard::new("a".parse().unwrap(), bytes)];
        let set = SampleSet::indexed(file.clone(), &shards(100)).unwrap().truncated(Some(1));
        assert_eq!(places(&set), [(0, 5, 10)]);
        assert!(SampleSet::indexed(file, &shards(99)).is_err());
        assert!(SampleSet::indexed(b"not an index".to_vec(), &shards(99)).is_err());
    }
}

//! Index whose file is in memory.

use zerocopy::FromBytes;

use super::Error;
use super::header::ArrayHeader;
use super::shards::ShardTable;
use crate::Sample;

/// Index in the bytes of its file: a slice, a `Vec<u8>`, or a memory-mapped file, whose records are
/// read only when they are used.
#[derive(Clone, Debug)]
pub struct Index<B> {
    file: B,
    data_offset: usize,
    data_end: usize,
    shards: Option<ShardTable>,
}

impl<B: AsRef<[u8]>> Index<B> {
    /// Parses the header and the table of shards. The samples are not checked:
    /// [`check`](Self::check) does that.
    ///
    /// # Errors
    /// The file is not an index, has fewer bytes than its header requires, or more that are not a
    /// table of shards.
    pub fn parse(file: B) -> Result<Self, Error> {
        let bytes = file.as_ref();
        let ArrayHeader { samples, data_offset } = ArrayHeader::parse(bytes)?;
        let data_bytes = (bytes.len() - data_offset) as u64;
        let records = samples.checked_mul(size_of::<Sample>() as u64);
        let records = records.filter(|records| *records <= data_bytes);
        let records = records.ok_or(Error::Length { samples, bytes: data_bytes })?;
        let data_end = data_offset + records as usize;
        let shards = ShardTable::parse(&bytes[data_end..])?;
        Ok(Self { file, data_offset, data_end, shards })
    }

    /// Returns the samples, in the order of their numbers.
    pub fn samples(&self) -> &[Sample] {
        // `parse` has checked that whole records follow the header.
        let data = self.file.as_ref().get(self.data_offset..self.data_end).unwrap_or_default();
        <[Sample]>::ref_from_bytes(data).unwrap_or_default()
    }

    /// Number of samples in the index.
    pub fn len(&self) -> u64 {
        self.samples().len() as u64
    }

    /// Whether the index has no samples.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Table of the shards that samples refer to; `None` in a file of the old form.
    pub fn shards(&self) -> Option<&ShardTable> {
        self.shards.as_ref()
    }

    /// Bytes of the file. The manifest contains their BLAKE3 hash.
    pub fn file(&self) -> &[u8] {
        self.file.as_ref()
    }

    /// Checks that each sample lies within its shard. `shard_bytes` contains the size of each
    /// shard, in the order of the table if there is one. It reads the whole file: 20 GB for 10^9
    /// samples. [`check_samples`] checks a part.
    ///
    /// # Errors
    /// The first sample that is not within its shard: [`Error::NoShard`] or [`Error::PastEnd`].
    pub fn check(&self, shard_bytes: &[u64]) -> Result<(), Error> {
        check_samples(self.samples(), 0, shard_bytes)
    }
}

/// Checks that each of `samples` lies within its shard. `first` is the number of the first one in
/// the index, for the error.
///
/// # Errors
/// The first sample that is not within its shard: [`Error::NoShard`] or [`Error::PastEnd`].
pub fn check_samples(samples: &[Sample], first: u64, shard_bytes: &[u64]) -> Result<(), Error> {
    samples.iter().enumerate().try_for_each(|(i, sample)| {
        check_sample(sample, first.saturating_add(i as u64), shard_bytes)
    })
}

fn check_sample(sample: &Sample, number: u64, shard_bytes: &[u64]) -> Result<(), Error> {
    let Sample { shard, length, offset, .. } = sample;
    let (shard, length, offset) = (shard.get(), length.get(), offset.get());
    let no_shard = Error::NoShard { sample: number, shard, shards: shard_bytes.len() };
    let &shard_bytes = shard_bytes.get(shard as usize).ok_or(no_shard)?;
    match offset.checked_add(u64::from(length)) {
        Some(end) if end <= shard_bytes => Ok(()),
        _ => Err(Error::PastEnd { sample: number, shard, offset, length, shard_bytes }),
    }
}

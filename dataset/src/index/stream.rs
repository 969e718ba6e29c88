//! Checks an index while it is read once from beginning to end.

use std::io::{self, Read};

use zerocopy::IntoBytes as _;

use super::Error;
use super::header::ArrayHeader;
use super::shards::ShardTable;
use super::view::check_samples;
use crate::Sample;

/// Number of samples that are read at a time (80 KiB).
const CHUNK: usize = 4096;
/// Maximum bytes of magic, version and header length.
const PREFIX_BYTES: u64 = 12;

/// Reason why an index could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file is not a valid index, or a sample is not within its shard.
    #[error(transparent)]
    Index(#[from] Error),
    /// The file cannot be read, or its length changed during the read.
    #[error("the index cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Reads an index file and checks that each sample lies within its shard, as
/// [`Index::parse`](super::Index::parse) and [`Index::check`](super::Index::check) do, but with
/// only 80 KiB of it and its table of shards in memory. Returns the number of samples.
/// `shard_bytes` contains the size of each shard, in the order of the table if there is one.
///
/// # Errors
/// The file is not an index, has not exactly `file_bytes` bytes, or cannot be read; or a sample is
/// not within its shard.
pub fn check_reader(
    mut reader: impl Read,
    file_bytes: u64,
    shard_bytes: &[u64],
) -> Result<u64, ReadError> {
    let ArrayHeader { samples, data_offset } = header(&mut reader)?;
    let data_bytes = file_bytes.saturating_sub(data_offset as u64);
    let records = samples.checked_mul(size_of::<Sample>() as u64);
    let table_bytes = records.and_then(|records| data_bytes.checked_sub(records));
    let table_bytes = table_bytes.ok_or(Error::Length { samples, bytes: data_bytes })?;
    let mut chunk = vec![Sample::default(); CHUNK.min(usize::try_from(samples).unwrap_or(CHUNK))];
    let mut done = 0;
    while done < samples {
        let length = chunk.len().min(usize::try_from(samples - done).unwrap_or(CHUNK));
        let part = &mut chunk[..length];
        reader.read_exact(part.as_mut_bytes())?;
        check_samples(part, done, shard_bytes)?;
        done += length as u64;
    }
    let mut table = Vec::new();
    reader.by_ref().take(table_bytes).read_to_end(&mut table)?;
    ShardTable::parse(&table)?;
    match reader.read(&mut [0])? {
        0 => Ok(samples),
        more => Err(Error::Length { samples, bytes: data_bytes + more as u64 }.into()),
    }
}

/// Reads the header, and nothing behind it.
pub(super) fn header(mut reader: impl Read) -> Result<ArrayHeader, ReadError> {
    let mut read = Vec::new();
    reader.by_ref().take(PREFIX_BYTES).read_to_end(&mut read)?;
    let header = match ArrayHeader::parse(&read) {
        Err(Error::CutHeader { header_bytes, .. }) => {
            // The buffer grows with the bytes that are read, so a wrong length in the file cannot
            // exhaust memory.
            let rest = header_bytes.saturating_sub(read.len() as u64);
            reader.take(rest).read_to_end(&mut read)?;
            ArrayHeader::parse(&read)?
        }
        other => other?,
    };
    Ok(header)
}

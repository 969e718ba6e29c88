//! Checksums of whole shards, and the BLAKE3 hash of the index.

use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::Path;

use anyhow::{Context as _, Result};
use feedrail_dataset::index::{IndexShard, ShardTable, check_reader};
use feedrail_dataset::{Blake3Hash, HashingReader};

use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::shards::{ListedShard, ReadPattern, ShardLocation, Subsystems};
use crate::stream::{self, RangePieces};

/// Bytes of a file that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;

/// Reads shards and the index from beginning to end, and shows progress.
pub(super) struct Checksums<'a> {
    progress: Progress,
    subsystems: &'a Subsystems,
    interrupt: &'a Interrupt,
}

/// Number of samples and hash of an index.
pub(super) struct CheckedIndex {
    pub(super) samples: u64,
    pub(super) hash: Blake3Hash,
}

impl<'a> Checksums<'a> {
    /// `total_bytes` is the number of bytes to read, for the progress bar.
    pub(super) fn new(
        total_bytes: u64,
        subsystems: &'a Subsystems,
        interrupt: &'a Interrupt,
    ) -> Self {
        Self { progress: Progress::transfer(Some(total_bytes)), subsystems, interrupt }
    }

    /// Returns the CRC-32C of a shard.
    pub(super) fn of(&mut self, shard: &ListedShard) -> Result<u32> {
        let ShardLocation::Namespace { namespace, subsystem } = &shard.place else {
            return self.of_file(shard);
        };
        let session = self.subsystems.session(subsystem).context("the shard has no connection")?;
        let pieces = RangePieces::new(0, shard.bytes, namespace.info().block_bytes);
        let mut crc = 0;
        stream::read(session.host(), namespace.clone(), pieces, self.interrupt, &mut |bytes| {
            crc = crc32c::crc32c_append(crc, bytes);
            self.progress.add(bytes.len() as u64);
            Ok(())
        })?;
        Ok(crc)
    }

    fn of_file(&mut self, shard: &ListedShard) -> Result<u32> {
        let file = shard.place.watch(ReadPattern::Whole, self.interrupt)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let (mut crc, mut done) = (0, 0);
        while done < shard.bytes {
            let length = (shard.bytes - done).min(CHUNK_BYTES as u64);
            let part = &mut chunk[..length as usize];
            file.read_at(done, part)?;
            crc = crc32c::crc32c_append(crc, part);
            self.progress.add(length);
            done += length;
        }
        Ok(crc)
    }

    /// Reads the shard table of an index and then the whole file once, in pieces, and checks that
    /// its samples lie within the shards.
    pub(super) fn of_index(&mut self, path: &Path, shards: &[IndexShard]) -> Result<CheckedIndex> {
        let mut file = File::open(path)?;
        let shard_bytes = match ShardTable::read(&mut file)? {
            Some(table) => {
                table.numbers_in(shards)?;
                table.shard_bytes()
            }
            None => {
                eprintln!("{}", without_names(path));
                shards.iter().map(|shard| shard.bytes).collect()
            }
        };
        file.rewind()?;
        let bytes = file.metadata()?.len();
        let Self { progress, interrupt, .. } = self;
        let mut reader = HashingReader::new(WatchedFile { file, progress, interrupt });
        let samples = check_reader(&mut reader, bytes, &shard_bytes)?;
        Ok(CheckedIndex { samples, hash: reader.finish()? })
    }
}

fn without_names(path: &Path) -> String {
    format!(
        "warning: {} has no names of its shards, whose order must be that of the arguments: write it \
         again with `feedrail index`",
        path.display()
    )
}

/// File whose reads count as progress, and fail after a signal.
struct WatchedFile<'a> {
    file: File,
    progress: &'a mut Progress,
    interrupt: &'a Interrupt,
}

impl Read for WatchedFile<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.interrupt.check().map_err(io::Error::other)?;
        let length = self.file.read(into)?;
        self.progress.add(length as u64);
        Ok(length)
    }
}

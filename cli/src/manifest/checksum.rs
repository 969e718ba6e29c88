//! Checksums of whole shards.

use anyhow::{Context as _, Result};
use feedrail_dataset::formats::ShardBytes;

use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::shards::{ListedShard, ReadPattern, ShardLocation, Subsystems};
use crate::stream::{self, RangePieces};

/// Computes the CRC-32C of shards, one after the other.
pub(super) struct Checksums<'a> {
    progress: Progress,
    subsystems: &'a Subsystems,
    interrupt: &'a Interrupt,
}

impl<'a> Checksums<'a> {
    pub(super) fn new(total: u64, subsystems: &'a Subsystems, interrupt: &'a Interrupt) -> Self {
        Self { progress: Progress::transfer(Some(total)), subsystems, interrupt }
    }

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
        let bytes = shard.place.watch(ReadPattern::Whole, self.interrupt)?;
        let bytes = ShardBytes::new(0, &*bytes);
        let crc = bytes.crc32c(bytes.whole())?;
        self.progress.add(shard.bytes);
        Ok(crc)
    }
}

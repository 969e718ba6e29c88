//! Readers of shards that stop after a signal.

use std::fs::File;
use std::io;

use anyhow::{Context as _, Result};
use feedrail_dataset::formats::{ChunkedReads, ReadAt, ShardFile};
use feedrail_initiator::Namespace;

use super::{ReadPattern, ShardLocation};
use crate::interrupt::Interrupt;

pub(super) fn open(place: &ShardLocation, pattern: ReadPattern) -> Result<Box<dyn ReadAt>> {
    Ok(match (place, pattern) {
        (ShardLocation::File(path), _) => {
            let file = File::open(path).and_then(ShardFile::new);
            Box::new(file.with_context(|| format!("cannot open {}", path.display()))?)
        }
        (ShardLocation::Namespace { namespace, .. }, ReadPattern::Parts) => {
            Box::new(RemoteShard(namespace.clone()))
        }
        (ShardLocation::Namespace { namespace, .. }, ReadPattern::Whole) => {
            Box::new(ChunkedReads::new(RemoteShard(namespace.clone())))
        }
    })
}

/// Namespace that is read with synchronous commands.
struct RemoteShard(Namespace);

impl ReadAt for RemoteShard {
    fn len(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.0.read_to_vec(offset, into.len()).wait().map_err(io::Error::other)?;
        into.copy_from_slice(&bytes);
        Ok(())
    }
}

/// Reader that fails after a signal.
pub(super) struct WatchedShard {
    bytes: Box<dyn ReadAt>,
    interrupt: Interrupt,
}

impl WatchedShard {
    pub(super) fn new(bytes: Box<dyn ReadAt>, interrupt: Interrupt) -> Self {
        Self { bytes, interrupt }
    }
}

impl ReadAt for WatchedShard {
    fn len(&self) -> u64 {
        self.bytes.len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.interrupt.check().map_err(io::Error::other)?;
        self.bytes.read_at(offset, into)
    }
}

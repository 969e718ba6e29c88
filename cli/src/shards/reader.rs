//! Reads of shards, which end when a signal comes.

use std::cell::RefCell;
use std::fs::File;
use std::io;

use anyhow::{Context as _, Result};
use feedrail_dataset::formats::{ReadAt, ShardFile};
use feedrail_initiator::Namespace;

use super::{ReadPattern, ShardLocation};
use crate::interrupt::Interrupt;

/// How much of a namespace is read at once where all of it is read.
const CHUNK_BYTES: u64 = 1 << 20;

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
            Box::new(ChunkedShard {
                shard: RemoteShard(namespace.clone()),
                chunk: RefCell::default(),
            })
        }
    })
}

/// A namespace, each read of which is one command or a few.
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

/// Serves small reads from the last chunk that was read.
struct ChunkedShard<R> {
    shard: R,
    /// Where the chunk begins, and its bytes.
    chunk: RefCell<(u64, Vec<u8>)>,
}

impl<R: ReadAt> ReadAt for ChunkedShard<R> {
    fn len(&self) -> u64 {
        self.shard.len()
    }

    fn read_at(&self, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
        let mut chunk = self.chunk.borrow_mut();
        while !into.is_empty() {
            let begin = offset / CHUNK_BYTES * CHUNK_BYTES;
            if chunk.1.is_empty() || chunk.0 != begin {
                let length = self.len().saturating_sub(begin).min(CHUNK_BYTES);
                let mut bytes = vec![0; length as usize];
                self.shard.read_at(begin, &mut bytes)?;
                *chunk = (begin, bytes);
            }
            let rest = chunk.1.get((offset - begin) as usize..).unwrap_or_default();
            let length = rest.len().min(into.len());
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let (now, later) = into.split_at_mut(length);
            now.copy_from_slice(&rest[..length]);
            (offset, into) = (offset + length as u64, later);
        }
        Ok(())
    }
}

/// Fails its reads once a signal came.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_have_the_bytes_of_the_shard(
            reads in prop::collection::vec((0_usize..2_500_000, 0_usize..1_200_000), 1..8)
        ) {
            let bytes: Vec<u8> = (0..2_500_000_u32).map(|i| (i ^ (i >> 9)) as u8).collect();
            let shard = ChunkedShard { shard: &*bytes, chunk: RefCell::default() };
            for (offset, length) in reads {
                let mut into = vec![0; length];
                let read = shard.read_at(offset as u64, &mut into);
                match bytes.get(offset..offset + length) {
                    Some(expected) => prop_assert!(read.is_ok() && into == expected),
                    None => prop_assert!(read.is_err()),
                }
            }
        }
    }
}

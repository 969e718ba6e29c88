//! Reads at byte offsets from a file, a slice, or a namespace of a target.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes of a read of [`ChunkedReads`].
const CHUNK_BYTES: u64 = 1 << 20;

/// Bytes of a shard, which can be read at any offset.
pub trait ReadAt {
    /// Size of the shard in bytes.
    fn len(&self) -> u64;

    /// Whether the shard has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// The bytes cannot be read, or the shard ends before `into` is full.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

impl ReadAt for [u8] {
    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let begin = usize::try_from(offset).ok();
        let bytes = begin.and_then(|begin| self.get(begin..begin.checked_add(into.len())?));
        into.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl<T: ReadAt + ?Sized> ReadAt for &T {
    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, into)
    }
}

impl ReadAt for Vec<u8> {
    fn len(&self) -> u64 {
        ReadAt::len(self.as_slice())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, into)
    }
}

/// File with the size that it had when it was opened.
#[derive(Debug)]
pub struct ShardFile {
    file: File,
    length_bytes: u64,
}

impl ShardFile {
    /// Takes an open file and determines its size.
    ///
    /// # Errors
    /// The size cannot be determined (fstat fails).
    pub fn new(file: File) -> io::Result<Self> {
        let length_bytes = file.metadata()?.len();
        Ok(Self { file, length_bytes })
    }
}

impl ReadAt for ShardFile {
    fn len(&self) -> u64 {
        self.length_bytes
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, offset)
    }
}

/// Reads a shard in chunks of 1 MiB, and serves small reads from the last chunk: for a remote shard
/// that is read from beginning to end.
#[derive(Debug)]
pub struct ChunkedReads<R> {
    shard: R,
    /// Offset of the last chunk, and its bytes.
    chunk: RefCell<(u64, Vec<u8>)>,
}

impl<R> ChunkedReads<R> {
    /// Wraps a shard. Nothing is read yet.
    pub fn new(shard: R) -> Self {
        Self { shard, chunk: RefCell::default() }
    }
}

impl<R: ReadAt> ReadAt for ChunkedReads<R> {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn check(bytes: &dyn ReadAt) {
        let mut two = [0; 2];
        assert_eq!(bytes.len(), 4);
        bytes.read_at(2, &mut two).unwrap();
        assert_eq!(&two, b"cd");
        for offset in [3, 4, u64::MAX] {
            let error = bytes.read_at(offset, &mut two).unwrap_err();
            // pread(2) takes no offset above i64::MAX.
            let past = [io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidInput];
            assert!(past.contains(&error.kind()), "{offset}: {error}");
        }
    }

    #[test]
    fn bytes_are_read_where_they_are_or_not_at_all() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abcd").unwrap();
        check(&b"abcd".to_vec());
        check(&ShardFile::new(file).unwrap());
    }

    proptest! {
        #[test]
        fn chunks_have_the_bytes_of_the_shard(
            reads in prop::collection::vec((0_usize..2_500_000, 0_usize..1_200_000), 1..8)
        ) {
            let bytes: Vec<u8> = (0..2_500_000_u32).map(|i| (i ^ (i >> 9)) as u8).collect();
            let shard = ChunkedReads::new(&*bytes);
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

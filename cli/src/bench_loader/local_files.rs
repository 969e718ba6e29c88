//! Local copies of the shards, and readers of them that use `pread` or mapped memory.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use feedrail_initiator::{Entry, Grant, RegionSlice};
use rustix::fs::OFlags;

use super::blocks::{BLOCK_BYTES, CHUNK_BYTES, chunks, is_aligned, whole_blocks};
use super::pool::RangeReader;
use crate::file_map::FileMap;

#[derive(Clone, Debug)]
pub(super) struct LocalFiles(Arc<[PathBuf]>);

impl LocalFiles {
    /// Checks that the files are as long as the shards.
    ///
    /// # Errors
    /// The number of files is not that of the shards, or a file cannot be opened or has another
    /// length.
    pub(super) fn new(paths: &[PathBuf], shard_bytes: &[u64]) -> Result<Self> {
        let (files, shards) = (paths.len(), shard_bytes.len());
        ensure!(files == shards, "there are {shards} shards, and {files} local files");
        for (path, &expected) in paths.iter().zip(shard_bytes) {
            let about = || path.display().to_string();
            let metadata = File::open(path).and_then(|file| file.metadata()).with_context(about)?;
            let found = metadata.len();
            ensure!(
                found == expected,
                "{} has {found} bytes, but its shard has {expected}: they are different files",
                path.display()
            );
        }
        Ok(Self(paths.into()))
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.0
    }

    /// Opens the files for reads through the page cache.
    pub(super) fn open(&self) -> Result<Vec<File>> {
        self.open_with(OFlags::empty())
    }

    /// Opens the files for reads that bypass the page cache (`O_DIRECT`).
    pub(super) fn open_direct(&self) -> Result<Vec<File>> {
        self.open_with(OFlags::DIRECT)
    }

    fn open_with(&self, flags: OFlags) -> Result<Vec<File>> {
        let open = |path: &PathBuf| {
            let mut options = OpenOptions::new();
            let options = options.read(true).custom_flags(flags.bits().cast_signed());
            options.open(path).with_context(|| format!("cannot open {}", path.display()))
        };
        self.0.iter().map(open).collect()
    }

    /// Maps each file whole into memory.
    pub(super) fn map(&self) -> Result<Arc<[FileMap]>> {
        self.0.iter().map(|path| FileMap::open(path)).collect()
    }
}

/// Reader that calls `pread` through the page cache.
pub(super) struct PreadReader(pub(super) Arc<[File]>);

impl RangeReader for PreadReader {
    fn read(&mut self, entries: &[Entry], into: &mut [u8]) -> Result<u64> {
        each(entries, into, |entry, into| {
            file(&self.0, entry)?.read_exact_at(into, entry.offset)?;
            Ok(u64::from(entry.length))
        })
    }
}

/// Reader that calls `pread` with `O_DIRECT`: it reads whole blocks into its bounce buffer, or into
/// the batch where offset, length and memory are aligned.
pub(super) struct DirectReader {
    files: Arc<[File]>,
    bounce: RegionSlice,
}

impl DirectReader {
    pub(super) fn new(files: Arc<[File]>) -> Result<Self> {
        let bounce = RegionSlice::allocate(CHUNK_BYTES as usize, Grant::PerCommand)?;
        Ok(Self { files, bounce })
    }
}

impl RangeReader for DirectReader {
    fn read(&mut self, entries: &[Entry], into: &mut [u8]) -> Result<u64> {
        let base = entries.first().map_or(0, |entry| entry.dst);
        let mut asked_bytes = 0;
        for chunk in chunks(entries) {
            let file = file(&self.files, &chunk)?;
            let at = usize::try_from(chunk.dst - base)?;
            let into = into.get_mut(at..at + chunk.length as usize).context("a short buffer")?;
            asked_bytes += read_chunk(file, &chunk, into, &mut self.bounce)?;
        }
        Ok(asked_bytes)
    }
}

fn read_chunk(
    file: &File,
    chunk: &Entry,
    into: &mut [u8],
    bounce: &mut RegionSlice,
) -> Result<u64> {
    if is_aligned(chunk, into.as_ptr().addr()) {
        file.read_exact_at(into, chunk.offset)?;
        return Ok(u64::from(chunk.length));
    }
    let blocks = whole_blocks(chunk);
    let asked = usize::try_from(blocks.end - blocks.start)?;
    let bounce = bounce.as_mut_slice().context("memory of this process")?;
    let bounce = bounce.get_mut(..asked).context("a chunk that is too long")?;
    let skip = (chunk.offset - blocks.start) as usize;
    let needed = skip + into.len();
    let mut done = 0;
    while done < needed {
        // The last block of a file is short, and a direct read that begins within a block fails.
        let begin = done / BLOCK_BYTES as usize * BLOCK_BYTES as usize;
        let read = file.read_at(&mut bounce[begin..], blocks.start + begin as u64)?;
        ensure!(begin + read > done, "the file ends within a sample");
        done = begin + read;
    }
    into.copy_from_slice(&bounce[skip..needed]);
    Ok(asked as u64)
}

/// Reader that copies from mapped files.
pub(super) struct MappedReader(pub(super) Arc<[FileMap]>);

impl RangeReader for MappedReader {
    fn read(&mut self, entries: &[Entry], into: &mut [u8]) -> Result<u64> {
        each(entries, into, |entry, into| {
            let map = self.0.get(entry.shard as usize).context("no such shard")?;
            map.copy(entry.offset, into)?;
            Ok(u64::from(entry.length))
        })
    }
}

/// Calls `read` with each range and its part of the buffer. Returns the sum of the results.
fn each(
    entries: &[Entry],
    into: &mut [u8],
    mut read: impl FnMut(&Entry, &mut [u8]) -> Result<u64>,
) -> Result<u64> {
    let (mut asked_bytes, mut rest) = (0, into);
    for entry in entries {
        let split = rest.split_at_mut_checked(entry.length as usize);
        let (part, later) = split.context("a short buffer")?;
        asked_bytes += read(entry, part)?;
        rest = later;
    }
    Ok(asked_bytes)
}

pub(super) fn file<'a>(files: &'a [File], entry: &Entry) -> Result<&'a File> {
    files.get(entry.shard as usize).context("no such shard")
}

//! The file that the demo exports, and with whose contents it compares what it reads.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use splitmix64::SplitMix64;
use tempfile::TempDir;

use super::plan::DemoRange;
use crate::interrupt::Interrupt;
use crate::size::human;

/// Size of a made-up file: 256 MiB and a remainder, so that it is no multiple of 512 bytes.
const MADE_UP_BYTES: u64 = (256 << 20) + 18_071;
const CHUNK_BYTES: usize = 1 << 20;
/// Bytes that must stay free on the disk of a made-up file.
const SPARE_BYTES: u64 = 64 << 20;

/// File to export. A made-up file is deleted on drop.
#[derive(Debug)]
pub(crate) struct DemoFile {
    path: PathBuf,
    file: File,
    size_bytes: u64,
    modified: Option<std::time::SystemTime>,
    _directory: Option<TempDir>,
}

impl DemoFile {
    /// Opens the user's file. It must be a regular file that is not empty.
    pub(crate) fn existing(path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let metadata = file.metadata()?;
        ensure!(
            metadata.is_file(),
            "{} is not a regular file: demo exports one file",
            path.display()
        );
        ensure!(metadata.len() > 0, "{} is empty: there is nothing to read back", path.display());
        let modified = metadata.modified().ok();
        Ok(Self { path, file, size_bytes: metadata.len(), modified, _directory: None })
    }

    /// Creates a file of pseudo-random bytes, in a new temporary directory.
    pub(crate) fn made_up(seed: u64, interrupt: &Interrupt) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("feedrail-demo-").tempdir().context(
            "cannot make a directory for temporary files; set TMPDIR to one that is writable",
        )?;
        check_space(directory.path())?;
        let path = directory.path().join("sample.bin");
        write_random(&path, seed, interrupt)
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self { _directory: Some(directory), ..Self::existing(&path)? })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Compares bytes that were read over the fabric with the file's. `scratch` is a buffer for the
    /// file's bytes that calls reuse.
    pub(crate) fn check(
        &self,
        range: DemoRange,
        bytes: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        scratch.resize(bytes.len(), 0);
        self.file
            .read_exact_at(scratch, range.offset_bytes)
            .with_context(|| format!("cannot read {} to compare", self.path.display()))?;
        match first_difference(scratch, bytes) {
            None => Ok(()),
            Some(index) => Err(self.difference(range, index, scratch[index], bytes[index])),
        }
    }

    fn difference(&self, range: DemoRange, index: usize, expected: u8, found: u8) -> anyhow::Error {
        let byte = range.offset_bytes + index as u64;
        if self.changed() {
            return anyhow::anyhow!(
                "{} was changed by somebody while it was being read; run the demo on a file at rest",
                self.path.display()
            );
        }
        anyhow::anyhow!(
            "WRONG DATA: byte {byte} (of the range {} + {}) is {found:#04x}, the file has {expected:#04x}",
            range.offset_bytes,
            range.length_bytes
        )
    }

    fn changed(&self) -> bool {
        self.file
            .metadata()
            .is_ok_and(|now| now.len() != self.size_bytes || now.modified().ok() != self.modified)
    }
}

fn first_difference(expected: &[u8], found: &[u8]) -> Option<usize> {
    if expected == found {
        return None;
    }
    expected.iter().zip(found).position(|(expected, found)| expected != found)
}

fn check_space(directory: &Path) -> Result<()> {
    let space = rustix::fs::statvfs(directory)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    ensure!(
        free >= MADE_UP_BYTES + SPARE_BYTES,
        "{} has {} free and the demo's file needs {}: set TMPDIR to a larger file system, or name a FILE",
        directory.display(),
        human(free),
        human(MADE_UP_BYTES + SPARE_BYTES),
    );
    Ok(())
}

fn write_random(path: &Path, seed: u64, interrupt: &Interrupt) -> Result<()> {
    let mut random = SplitMix64::new(seed);
    let mut file = BufWriter::with_capacity(CHUNK_BYTES, File::create_new(path)?);
    let mut left = MADE_UP_BYTES;
    let mut chunk = vec![0; CHUNK_BYTES];
    while left > 0 {
        interrupt.check()?;
        fill(&mut chunk, &mut random);
        let length = left.min(CHUNK_BYTES as u64);
        file.write_all(&chunk[..length as usize])?;
        left -= length;
    }
    Ok(file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()?)
}

fn fill(chunk: &mut [u8], random: &mut SplitMix64) {
    for word in chunk.chunks_exact_mut(8) {
        word.copy_from_slice(&random.next_u64().to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(bytes: &[u8]) -> (TempDir, DemoFile) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        let sample = DemoFile::existing(&path).unwrap();
        (directory, sample)
    }

    #[test]
    fn one_wrong_byte_is_found_and_named() {
        let (_directory, sample) = sample(b"0123456789");
        let range = DemoRange { offset_bytes: 2, length_bytes: 5 };
        let mut scratch = Vec::new();
        sample.check(range, b"23456", &mut scratch).unwrap();
        let error = sample.check(range, b"234x6", &mut scratch).unwrap_err().to_string();
        assert!(
            error.contains("byte 5 ") && error.contains("0x78") && error.contains("0x35"),
            "{error}"
        );
    }

    #[test]
    fn a_changed_file_is_not_called_wrong_data() {
        let (directory, sample) = sample(b"0123456789");
        std::fs::write(directory.path().join("file"), b"0123456789abc").unwrap();
        let range = DemoRange { offset_bytes: 0, length_bytes: 2 };
        let error = sample.check(range, b"xx", &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("was changed"), "{error}");
    }

    #[test]
    fn directories_empty_and_missing_files_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        assert!(DemoFile::existing(directory.path()).is_err());
        assert!(DemoFile::existing(&directory.path().join("missing")).is_err());
        std::fs::write(directory.path().join("empty"), b"").unwrap();
        assert!(DemoFile::existing(&directory.path().join("empty")).is_err());
    }
}

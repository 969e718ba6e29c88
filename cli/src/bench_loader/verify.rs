//! Compares batches with the local files.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, ensure};
use feedrail_initiator::Entry;

use super::local_files::{LocalFiles, file};
use super::reader::BatchReader;
use super::samples::SampleBatch;

/// Bytes that are compared at a time.
const PART_BYTES: usize = 1 << 20;

pub(super) struct Verifier {
    files: Vec<File>,
    names: LocalFiles,
    /// Whether every batch is compared, not only the first of each rank in a turn.
    pub(super) all: bool,
}

impl Verifier {
    pub(super) fn new(local: &LocalFiles, all: bool) -> Result<Self> {
        Ok(Self { files: local.open()?, names: local.clone(), all })
    }

    /// # Errors
    /// A byte differs, or the file cannot be read.
    pub(super) fn verify(
        &self,
        reader: &dyn BatchReader,
        slot: usize,
        batch: &SampleBatch,
    ) -> Result<()> {
        let mut room = (vec![0; PART_BYTES], vec![0; PART_BYTES]);
        batch.entries.iter().try_for_each(|entry| self.compare(reader, slot, entry, &mut room))
    }

    fn compare(
        &self,
        reader: &dyn BatchReader,
        slot: usize,
        entry: &Entry,
        (found, expected): &mut (Vec<u8>, Vec<u8>),
    ) -> Result<()> {
        let local = file(&self.files, entry)?;
        let length = entry.length as usize;
        for start in (0..length).step_by(PART_BYTES) {
            let part = (length - start).min(PART_BYTES);
            let (found, expected) = (&mut found[..part], &mut expected[..part]);
            reader.copy_out(slot, usize::try_from(entry.dst)? + start, found)?;
            let read = local.read_exact_at(expected, entry.offset + start as u64);
            read.context("cannot read the local file to compare with")?;
            if let Some(at) = found.iter().zip(&*expected).position(|(a, b)| a != b) {
                let byte = entry.offset + (start + at) as u64;
                let path = self.names.paths().get(entry.shard as usize);
                let path = path.map(|path| path.display().to_string()).unwrap_or_default();
                ensure!(false, "byte {byte} is not what {path} has there");
            }
        }
        Ok(())
    }
}

//! A file: an entry whose length is not known when it is begun.

use feedrail_checkpoint::CheckpointName;

use crate::clock::unix_ms;
use crate::error::StoreError;
use crate::replicated_save::ReplicaSaves;
use crate::replicated_store::ReplicatedStore;
use crate::save::SaveEntry;
use crate::unit_buffer;

/// An entry in the making on all replicas that have the newest checkpoints, whose bytes are
/// appended. Readers see it after the commit, as a whole. A store can have many; each holds at most
/// one unit of bytes beside the registered memory of the store, which they share.
///
/// Each call must get the store that began it. If it is dropped, nothing of it remains.
#[derive(Debug)]
pub struct ReplicaFile {
    saves: ReplicaSaves,
    entry: SaveEntry,
    /// Bytes that were written, a multiple of the unit.
    written: u64,
    /// Bytes that do not fill a unit yet.
    part: Vec<u8>,
}

impl ReplicatedStore {
    /// Begins an entry of a checkpoint. The commit makes a missing checkpoint, with the number at
    /// the end of its name as its step, and replaces an entry that has this name then.
    ///
    /// # Errors
    /// [`StoreError::Name`], [`StoreError::ReadOnly`], if fewer replicas than a quorum can do it.
    pub fn begin_file(&mut self, checkpoint: &str, entry: &str) -> Result<ReplicaFile, StoreError> {
        CheckpointName::new(checkpoint)?;
        let created_ms = unix_ms();
        let mut saves =
            ReplicaSaves::begin_with(self, |store| store.begin_entries(checkpoint, created_ms))?;
        let entry = saves.add(self, entry, 0)?;
        Ok(ReplicaFile { saves, entry, written: 0, part: Vec::new() })
    }
}

impl ReplicaFile {
    /// Returns the bytes that were appended.
    pub fn length(&self) -> u64 {
        self.written + self.part.len() as u64
    }

    /// Returns the number of bytes up to the end of the present unit. Calls of
    /// [`ReplicaFile::append`] with so many copy them once less.
    pub fn room(&self) -> usize {
        self.unit_bytes() - self.part.len()
    }

    fn unit_bytes(&self) -> usize {
        // At most 16 MiB.
        self.saves.unit_bytes() as usize
    }

    /// Appends bytes. They are copied; an error of their write is returned by a later call.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is no space; as [`StoreSave::write_at`](crate::StoreSave),
    /// if fewer replicas than a quorum can do it. The file can then only be dropped.
    pub fn append(&mut self, store: &mut ReplicatedStore, bytes: &[u8]) -> Result<(), StoreError> {
        let mut part = std::mem::take(&mut self.part);
        let unit_bytes = self.unit_bytes();
        let result =
            unit_buffer::append(&mut part, unit_bytes, bytes, |unit| self.write(store, unit));
        self.part = part;
        result
    }

    /// Writes a unit, or the last bytes.
    fn write(&mut self, store: &mut ReplicatedStore, bytes: &[u8]) -> Result<(), StoreError> {
        self.saves.extend(store, self.entry, bytes.len() as u64)?;
        self.saves.write_at(store, self.entry, self.written, bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Makes the entry durable and visible on all replicas that are left.
    ///
    /// # Errors
    /// As [`StoreSave::commit`](crate::StoreSave::commit), if no replica has it;
    /// [`StoreError::Volume`] also if the checkpoint has an entry whose name is a folder in this
    /// one, or the reverse; [`StoreError::Unknown`] if fewer than a quorum have it.
    pub fn commit(mut self, store: &mut ReplicatedStore) -> Result<(), StoreError> {
        let part = std::mem::take(&mut self.part);
        if !part.is_empty() {
            self.write(store, &part)?;
        }
        self.saves.commit(store)
    }
}

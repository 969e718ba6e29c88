//! A save: a checkpoint or entries of one, before its commit.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use feedrail_checkpoint::{EntryName, Error, Save};
use uuid::Uuid;

use crate::clock::{now, unix_ms};
use crate::driver::LossMark;
use crate::error::StoreError;
use crate::open_volume::{OpenVolume, lock};
use crate::reservation::EntryReservation;
use crate::write_pipe::SaveWrites;

/// A checkpoint in the making, or entries that a commit adds to one. If it is dropped, or its
/// process ends, nothing of it remains. A store can have many, which share its registered memory.
///
/// Writes are in flight when a call returns: their bytes were copied to registered memory, and
/// their errors are returned by a later call, at the latest by [`StoreSave::commit`].
pub struct StoreSave {
    open: Arc<Mutex<OpenVolume>>,
    /// `None` once it was committed or aborted.
    save: Option<Save>,
    writes: SaveWrites,
    /// When its first write began.
    unflushed: LossMark,
    unit_bytes: u64,
    /// Value of [`OpenVolume::epoch`] when the save began.
    epoch: u64,
    keep: Option<usize>,
    /// Random number of the save, by which it knows its reservations.
    id: Uuid,
    /// Entries that other processes may be writing.
    reserved: BTreeSet<usize>,
    began: Instant,
}

/// An entry of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveEntry(usize);

impl StoreSave {
    pub(crate) fn new(shared: &Arc<Mutex<OpenVolume>>, save: Save) -> Self {
        let mut open = lock(shared);
        let unit_bytes = open.volume.superblock().geometry.unit_bytes();
        let (unflushed, epoch) = (open.driver.loss_mark(), open.epoch);
        let pipe = open.write_pipe();
        open.saves += 1;
        drop(open);
        Self {
            open: Arc::clone(shared),
            save: Some(save),
            writes: SaveWrites::new(pipe),
            unflushed,
            unit_bytes,
            epoch,
            keep: None,
            id: Uuid::new_v4(),
            reserved: BTreeSet::new(),
            began: now(),
        }
    }

    /// Deletes all checkpoints but the last `count` with the commit; this one counts.
    pub fn keep(&mut self, count: usize) {
        self.keep = Some(count);
    }

    /// Returns the size of a unit in bytes; [`StoreSave::write_at`] begins at multiples of it.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Adds an entry of a length, and reserves its space.
    ///
    /// # Errors
    /// [`StoreError::Name`]; [`StoreError::Volume`] if there is an entry of this name, or not
    /// enough space; [`StoreError::SaveLost`].
    pub fn add(&mut self, name: &str, length: u64) -> Result<SaveEntry, StoreError> {
        let name = EntryName::new(name)?;
        let mut open = lock(&self.open);
        let save = self.save.as_mut().filter(|_| open.epoch == self.epoch);
        let save = save.ok_or(StoreError::SaveLost)?;
        Ok(SaveEntry(open.volume.add_entry(save, name, length)?))
    }

    /// Makes an entry longer, whose length is a multiple of the unit, and reserves the space.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is not enough space, and the entry is as it was;
    /// [`StoreError::SaveLost`].
    pub fn extend(&mut self, SaveEntry(index): SaveEntry, by: u64) -> Result<(), StoreError> {
        let mut open = lock(&self.open);
        let save = self.save.as_mut().filter(|_| open.epoch == self.epoch);
        let save = save.ok_or(StoreError::SaveLost)?;
        Ok(open.volume.extend_entry(save, index, by)?)
    }

    /// Adds an entry with these bytes.
    ///
    /// # Errors
    /// The errors of [`StoreSave::add`] and [`StoreSave::write_at`].
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let entry = self.add(name, bytes.len() as u64)?;
        self.write_at(entry, 0, bytes)
    }

    /// Writes bytes of an entry from `offset`, a multiple of the unit, to the end of a unit or of
    /// the entry. Waits only for memory of earlier writes.
    ///
    /// # Errors
    /// [`StoreError::Volume`] for a wrong range, [`StoreError::SaveLost`], or the error of this or
    /// an earlier write. The save can then only be dropped.
    pub fn write_at(
        &mut self,
        entry: SaveEntry,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let unit_bytes = usize::try_from(self.unit_bytes).map_err(|_| Error::Range)?;
        for (unit, part) in (0..).zip(bytes.chunks(unit_bytes)) {
            let offset = offset.checked_add(unit * self.unit_bytes).ok_or(Error::Range)?;
            self.write_unit(entry, offset, part)?;
        }
        self.writes.submit();
        Ok(())
    }

    fn write_unit(
        &mut self,
        SaveEntry(index): SaveEntry,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let Self { open, save, writes, epoch, .. } = self;
        writes.write(bytes, || {
            let mut open = lock(open);
            open.renew_if_due()?;
            let save = save.as_mut().filter(|_| open.epoch == *epoch);
            let save = save.ok_or(StoreError::SaveLost)?;
            Ok(open.volume.write_unit(save, index, offset, bytes, unix_ms())?)
        })
    }

    /// Reserves an entry for a [`RankWriter`](crate::RankWriter) of another process. Until
    /// [`StoreSave::accept`] or [`StoreSave::withdraw`], the end of the save neither frees the
    /// space of the save nor gives the lease back, since that process may still write.
    ///
    /// # Errors
    /// [`StoreError::SaveLost`] if the volume was opened again since the save began;
    /// [`StoreError::ReadOnly`] if the store has no lease any longer.
    pub fn reserve(&mut self, SaveEntry(index): SaveEntry) -> Result<EntryReservation, StoreError> {
        let open = lock(&self.open);
        let save = self.save.as_ref().filter(|_| open.epoch == self.epoch);
        let entry = save.ok_or(StoreError::SaveLost)?.entries().get(index).ok_or(Error::Range)?;
        let superblock = open.volume.superblock();
        let reservation = EntryReservation {
            volume: superblock.uuid,
            lease: open.lease_number().ok_or(StoreError::ReadOnly)?,
            save: self.id,
            unit_bytes: self.unit_bytes,
            length: entry.length,
            extents: entry.extents.iter().map(|one| (one.first, one.units)).collect(),
        };
        self.reserved.insert(index);
        Ok(reservation)
    }

    /// Takes the checksums of an entry that another process has written and flushed. `save` is the
    /// number in its reservation.
    ///
    /// # Errors
    /// [`StoreError::SaveLost`] for the number of another save; [`StoreError::Volume`] for another
    /// number of checksums.
    pub fn accept(
        &mut self,
        SaveEntry(index): SaveEntry,
        save: Uuid,
        checksums: &[u32],
    ) -> Result<(), StoreError> {
        let own = self.save.as_mut().filter(|_| save == self.id).ok_or(StoreError::SaveLost)?;
        own.accept(index, checksums)?;
        self.reserved.remove(&index);
        Ok(())
    }

    /// Notes that the process that was to write an entry has failed, and has dropped its writer,
    /// which waits for the writes in flight. After a kill of the process, leave the entry reserved:
    /// the target may still make a write of it.
    pub fn withdraw(&mut self, SaveEntry(index): SaveEntry) {
        self.reserved.remove(&index);
    }

    /// Makes the checkpoint durable and visible: waits for all writes, flushes them, writes the
    /// manifest, flushes it, and writes the superblock with Force Unit Access. If it succeeds, the
    /// checkpoint survives a loss of power; otherwise the earlier checkpoints are as they were,
    /// unless the error is [`StoreError::Unknown`].
    ///
    /// # Errors
    /// The error of a write; [`StoreError::Volume`] if an entry is incomplete or there is no space
    /// for the manifest; [`StoreError::SaveLost`], [`StoreError::LostWrites`],
    /// [`StoreError::NotMade`], [`StoreError::Unknown`], [`StoreError::Device`].
    pub fn commit(mut self) -> Result<(), StoreError> {
        let _span = tracing::debug_span!("commit", save = %self.id).entered();
        let written = self.writes.drain()?;
        let open = Arc::clone(&self.open);
        let mut open = lock(&open);
        let save = self.save.take().filter(|_| open.epoch == self.epoch);
        let mut save = save.ok_or(StoreError::SaveLost)?;
        written.into_iter().for_each(|unit| save.end_unit(unit));
        let result = open.commit(&save, self.unflushed, self.keep);
        match &result {
            Ok(()) => {
                let bytes = save.entries().iter().map(|entry| entry.length).sum();
                open.stats.count_save(bytes, self.began.elapsed());
                tracing::debug!(bytes, time = ?self.began.elapsed(), "committed a checkpoint");
            }
            Err(error) => {
                tracing::debug!(%error, "could not commit a checkpoint");
                if open.epoch == self.epoch && self.reserved.is_empty() {
                    open.volume.abort(save);
                }
            }
        }
        result
    }

    /// Ends the save without a commit, as dropping it does.
    pub fn abort(self) {
        drop(self);
    }
}

impl Drop for StoreSave {
    fn drop(&mut self) {
        // The space must not be used again while writes to it are in flight.
        let _ = self.writes.drain();
        let mut open = lock(&self.open);
        open.saves -= 1;
        if !self.reserved.is_empty() {
            // The next writer waits until the lease has ended, and with it the other processes.
            open.forget_lease();
            return;
        }
        if let Some(save) = self.save.take()
            && open.epoch == self.epoch
        {
            open.volume.abort(save);
        }
    }
}

impl fmt::Debug for StoreSave {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreSave")
            .field("entries", &self.save.as_ref().map_or(0, |save| save.entries().len()))
            .finish_non_exhaustive()
    }
}

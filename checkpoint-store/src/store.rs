//! Stores: checkpoints of one volume.

use std::fmt;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, MutexGuard};

use feedrail_checkpoint::{
    Change, Checkpoint, CheckpointEntry, CheckpointName, EntryName, Error, Formatting, Lease,
    ReadPlan, RepairPlan, Replica,
};
use uuid::Uuid;

use crate::clock::{now, unix_ms};
use crate::driver::Driver;
use crate::error::StoreError;
use crate::open_volume::{Claim, OpenVolume, lock, open_unchanged};
use crate::options::{FormatOptions, StoreOptions};
use crate::read::{UnitFault, read_pieces};
use crate::save::StoreSave;
use crate::stats::StoreStats;
use crate::unit_pipe::UnitPipe;
use crate::volume_namespace::VolumeNamespace;

/// An open volume. Calls block until their operations have ended.
///
/// A store that was opened for writing has the lease of the volume, which it renews in each call
/// when half of it has passed, and gives back when it is closed or dropped. Clones share the volume
/// and its lease.
#[derive(Clone)]
pub struct CheckpointStore {
    open: Arc<Mutex<OpenVolume>>,
}

/// Facts about a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredCheckpoint {
    /// Name, which no other checkpoint of the volume has.
    pub name: String,
    /// Training step, as the caller of [`CheckpointStore::begin`] gave it.
    pub step: u64,
    /// When its save began, in milliseconds since 1970.
    pub created_ms: u64,
    /// Number of its entries, empty ones included.
    pub entries: usize,
    /// Sum of the lengths of all entries.
    pub bytes: u64,
    /// Bytes that the caller stored with it.
    pub metadata: Vec<u8>,
}

/// Facts about an entry of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    /// Name: parts with `/` between them, never empty, `.` or `..`.
    pub name: String,
    /// Length in bytes, without the padding to a unit.
    pub length: u64,
    /// CRC-32C of each unit.
    pub checksums: Vec<u32>,
}

/// Facts about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSummary {
    /// UUID, which replicas have in common.
    pub uuid: Uuid,
    /// Generation of its newest superblock.
    pub generation: u64,
    /// Size of a unit in bytes.
    pub unit_bytes: u64,
    /// Size of the volume in bytes.
    pub capacity_bytes: u64,
    /// Bytes that a save may have; the next manifest needs a part of them.
    pub free_bytes: u64,
    /// Lease of the present or last writer that has not given it back.
    pub lease: Option<Lease>,
    /// Whether a superblock or manifest is damaged, so that a newer commit may have been lost.
    pub is_fallen_back: bool,
}

impl CheckpointStore {
    /// Makes an empty volume of a namespace, and returns its UUID.
    ///
    /// # Errors
    /// [`StoreError::WriteProtected`]; [`StoreError::Volume`] if the namespace is too small, or
    /// holds something and the options do not force it; [`StoreError::Device`].
    pub fn format(place: &VolumeNamespace, options: &FormatOptions) -> Result<Uuid, StoreError> {
        place.check_writable()?;
        let FormatOptions { unit_shift, is_forced, uuid } = *options;
        let formatting = Formatting::new(place.attributes(), uuid, unit_shift, is_forced)?;
        Driver::new(place.clone()).run(formatting)?;
        Ok(uuid)
    }

    /// Reads whether a namespace can be formatted, and writes nothing.
    ///
    /// # Errors
    /// As [`CheckpointStore::format`], with the same checks.
    pub fn check_format(
        place: &VolumeNamespace,
        options: &FormatOptions,
    ) -> Result<(), StoreError> {
        place.check_writable()?;
        let FormatOptions { unit_shift, is_forced, uuid } = *options;
        let formatting = Formatting::new(place.attributes(), uuid, unit_shift, is_forced)?;
        Driver::new(place.clone()).run_first_round(formatting)
    }

    /// Checks the names of a checkpoint and of its entries.
    ///
    /// # Errors
    /// [`StoreError::Name`] for the first one that is not allowed.
    pub fn check_names<'a>(
        checkpoint: &str,
        entries: impl IntoIterator<Item = &'a str>,
    ) -> Result<(), StoreError> {
        CheckpointName::new(checkpoint)?;
        entries.into_iter().try_for_each(|entry| Ok(EntryName::new(entry).map(drop)?))
    }

    /// Checks whether a checkpoint of a name and with entries of these lengths could be saved. The
    /// manifest needs some space beside.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is a checkpoint of the name, or not enough space.
    pub fn check_space(
        &self,
        checkpoint: &str,
        lengths: impl IntoIterator<Item = u64>,
    ) -> Result<(), StoreError> {
        let open = self.lock();
        if open.volume.manifest().checkpoint(checkpoint).is_some() {
            return Err(Error::Exists(checkpoint.to_owned()).into());
        }
        let geometry = open.volume.superblock().geometry;
        let units: u64 = lengths.into_iter().map(|length| geometry.units_of(length)).sum();
        let needed_bytes = units.saturating_mul(geometry.unit_bytes());
        let free_bytes = open.volume.free_bytes();
        if needed_bytes >= free_bytes {
            return Err(Error::CapacityExceeded { needed_bytes, free_bytes }.into());
        }
        Ok(())
    }

    /// Opens a volume for reading.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is no volume of a known version, [`StoreError::Device`].
    pub fn open(place: &VolumeNamespace, options: StoreOptions) -> Result<Self, StoreError> {
        Ok(Self { open: Arc::new(Mutex::new(OpenVolume::open(place, options)?)) })
    }

    /// Opens a volume for writing, and takes its lease.
    ///
    /// # Errors
    /// [`StoreError::Leased`] while another writer has the lease, [`StoreError::WriteProtected`],
    /// and those of [`CheckpointStore::open`].
    pub fn open_writer(place: &VolumeNamespace, options: StoreOptions) -> Result<Self, StoreError> {
        open_unchanged(|| {
            let store = Self::open(place, options)?;
            store.take_lease(Claim::Alone)?;
            Ok(store)
        })
    }

    pub(crate) fn take_lease(&self, claim: Claim) -> Result<(), StoreError> {
        self.lock().take_lease(claim)
    }

    /// Renews the lease if half of it has passed, for a caller that keeps it without other calls.
    ///
    /// # Errors
    /// [`StoreError::Leased`] or [`StoreError::Volume`] if another writer has the volume;
    /// [`StoreError::ReadOnly`], [`StoreError::Device`].
    pub fn renew_if_due(&self) -> Result<(), StoreError> {
        self.lock().renew_if_due()
    }

    pub(crate) fn is_renewal_due(&self) -> bool {
        self.lock().is_renewal_due()
    }

    /// Renews the lease now.
    pub(crate) fn renew(&self, generation: Option<u64>) -> Result<(), StoreError> {
        self.lock().renew(generation)
    }

    /// Returns the facts by which replicas are compared.
    pub(crate) fn replica(&self) -> Option<Replica> {
        self.lock().volume.replica()
    }

    pub(crate) fn last_generation(&self) -> u64 {
        self.lock().volume.last_generation()
    }

    /// Returns how to make this replica equal to the newest one, which must not be a clone of it.
    pub(crate) fn repair_plan(&self, newest: &Self) -> RepairPlan {
        RepairPlan::new(&newest.lock().volume, &self.lock().volume)
    }

    /// Returns how to repair this replica, which has missed nothing.
    pub(crate) fn unit_repair_plan(&self) -> RepairPlan {
        RepairPlan::of_current(&self.lock().volume)
    }

    /// Returns whether it is open for writing, and has not given its lease back.
    pub(crate) fn has_lease(&self) -> bool {
        self.lock().lease_number().is_some()
    }

    /// Leaves the lease to its end: the store writes nothing from now on.
    pub(crate) fn forget_lease(&self) {
        self.lock().forget_lease();
    }

    pub(crate) fn release(&self) -> Result<(), StoreError> {
        self.lock().release()
    }

    pub(crate) fn publish(&self, change: &Change<'_>) -> Result<(), StoreError> {
        self.lock().publish(change)
    }

    /// Returns whether another store has the same checkpoints, wherever their bytes are.
    pub(crate) fn has_same(&self, other: &Self) -> bool {
        let checkpoints = |store: &Self| store.lock().volume.manifest().checkpoints.clone();
        let (own, others) = (checkpoints(self), checkpoints(other));
        own.len() == others.len()
            && own.iter().zip(&others).all(|(own, other)| own.has_same_bytes(other))
    }

    /// Gives the lease back, so that another writer can begin. Other clones can only read then.
    ///
    /// # Errors
    /// [`StoreError::SaveInProgress`], [`StoreError::Device`]; then the lease ends by its time.
    pub fn close(self) -> Result<(), StoreError> {
        let mut open = self.lock();
        if open.saves > 0 {
            return Err(StoreError::SaveInProgress);
        }
        open.release()
    }

    /// Returns facts about the volume, as it was when it was opened or changed last.
    pub fn summary(&self) -> VolumeSummary {
        let open = self.lock();
        let superblock = open.volume.superblock();
        let geometry = superblock.geometry;
        VolumeSummary {
            uuid: superblock.uuid,
            generation: superblock.generation,
            unit_bytes: geometry.unit_bytes(),
            capacity_bytes: geometry.capacity_units() * geometry.unit_bytes(),
            free_bytes: open.volume.free_bytes(),
            lease: superblock.lease,
            is_fallen_back: open.volume.is_fallen_back(),
        }
    }

    /// Returns the counters of saves and reads since the store was opened.
    pub fn stats(&self) -> StoreStats {
        self.lock().stats
    }

    /// Returns the checkpoints, in the order of their commits.
    pub fn list(&self) -> Vec<StoredCheckpoint> {
        self.lock().volume.manifest().checkpoints.iter().map(StoredCheckpoint::of).collect()
    }

    /// Returns the checkpoint that was committed last.
    pub fn latest(&self) -> Option<StoredCheckpoint> {
        self.lock().volume.manifest().checkpoints.last().map(StoredCheckpoint::of)
    }

    /// Returns the entries of a checkpoint.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is no such checkpoint.
    pub fn entries(&self, checkpoint: &str) -> Result<Vec<StoredEntry>, StoreError> {
        let open = self.lock();
        let found = open.volume.manifest().checkpoint(checkpoint);
        let found = found.ok_or_else(|| Error::Missing(checkpoint.to_owned()))?;
        Ok(found.entries.iter().map(StoredEntry::of).collect())
    }

    /// Begins a save. Nothing is visible to readers until [`StoreSave::commit`].
    ///
    /// # Errors
    /// [`StoreError::Name`]; [`StoreError::Volume`] if there is a checkpoint of this name;
    /// [`StoreError::ReadOnly`].
    pub fn begin(&self, name: &str, step: u64, metadata: Vec<u8>) -> Result<StoreSave, StoreError> {
        self.begin_at(name, step, metadata, unix_ms())
    }

    /// Begins a save of a checkpoint that was created at another time.
    pub(crate) fn begin_at(
        &self,
        name: &str,
        step: u64,
        metadata: Vec<u8>,
        created_ms: u64,
    ) -> Result<StoreSave, StoreError> {
        let _span = tracing::debug_span!("begin", checkpoint = name, step).entered();
        let name = CheckpointName::new(name)?;
        let mut open = self.lock();
        open.renew_if_due()?;
        let save = open.volume.begin(name, step, metadata, unix_ms())?.created(created_ms);
        drop(open);
        Ok(StoreSave::new(&self.open, save))
    }

    /// Begins a save whose commit adds entries to a checkpoint, instead of those of the same names.
    /// If there is no such checkpoint, the commit makes it, with the number at the end of its name
    /// as its step.
    pub(crate) fn begin_entries(
        &self,
        checkpoint: &str,
        created_ms: u64,
    ) -> Result<StoreSave, StoreError> {
        let name = CheckpointName::new(checkpoint)?;
        let mut open = self.lock();
        open.renew_if_due()?;
        let save = open.volume.begin_entries(name, unix_ms())?.created(created_ms);
        drop(open);
        Ok(StoreSave::new(&self.open, save))
    }

    /// Deletes a checkpoint, and deallocates its units after the commit.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is no such checkpoint; [`StoreError::ReadOnly`],
    /// [`StoreError::NotMade`], [`StoreError::Unknown`].
    pub fn delete(&self, checkpoint: &str) -> Result<(), StoreError> {
        self.publish(&Change::new().delete(checkpoint))
    }

    /// Deletes all checkpoints but the last `count`.
    ///
    /// # Errors
    /// As [`CheckpointStore::delete`]; it is no error if there are fewer.
    pub fn keep(&self, count: usize) -> Result<(), StoreError> {
        self.publish(&Change::new().keep(count))
    }

    /// Reads the volume again, to see what another host committed.
    ///
    /// # Errors
    /// As [`CheckpointStore::open`]; [`StoreError::SaveInProgress`] while a save has not ended.
    pub fn refresh(&self) -> Result<(), StoreError> {
        let mut open = self.lock();
        if open.saves > 0 {
            return Err(StoreError::SaveInProgress);
        }
        open.refresh()
    }

    /// Reads a byte range of an entry into memory of its length, and verifies the checksums of all
    /// units that it touches.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], [`StoreError::Host`]; [`StoreError::Volume`] if there is no such
    /// entry or range. The contents of `into` are then unspecified.
    pub fn read(
        &self,
        checkpoint: &str,
        entry: &str,
        range: Range<u64>,
        into: &mut [u8],
    ) -> Result<(), StoreError> {
        let start = range.start;
        if range.end.checked_sub(start) != Some(into.len() as u64) {
            return Err(Error::Range.into());
        }
        self.read_with(checkpoint, entry, range, &mut |offset, bytes| {
            let from = (offset - start) as usize;
            into[from..from + bytes.len()].copy_from_slice(bytes);
            ControlFlow::Continue(())
        })
    }

    /// Reads a byte range of an entry, and calls `sink` with the offset in the entry and the bytes
    /// of each unit once they are verified, in any order.
    ///
    /// # Errors
    /// As [`CheckpointStore::read`]; [`StoreError::Stopped`] if `sink` stopped the call.
    pub fn read_with(
        &self,
        checkpoint: &str,
        entry: &str,
        range: Range<u64>,
        sink: &mut dyn FnMut(u64, &[u8]) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let began = now();
        let first_unit = range.start / self.unit_bytes();
        let length = range.end.saturating_sub(range.start);
        let (plan, mut pipe) = self.begin_read(checkpoint, entry, range)?;
        let unit_bytes = self.unit_bytes();
        let result = read_pieces(&mut pipe, &plan, &mut |index, bytes| {
            let piece = &plan.pieces[index];
            let unit_offset = (first_unit + index as u64) * unit_bytes;
            match bytes {
                Ok(bytes) => sink(unit_offset + piece.wanted.start as u64, bytes)
                    .map_break(|()| StoreError::Stopped),
                Err(UnitFault::Device(error)) => ControlFlow::Break(error.into()),
                Err(UnitFault::Checksum) => ControlFlow::Break(StoreError::Damaged {
                    checkpoint: checkpoint.to_owned(),
                    entry: entry.to_owned(),
                    offset: unit_offset,
                    length: piece.length as u64,
                }),
            }
        });
        self.end_read(pipe);
        let stats = &mut self.lock().stats;
        match &result {
            Ok(()) => stats.count_read(length, began.elapsed()),
            Err(StoreError::Damaged { .. } | StoreError::Host(_)) => stats.failed_reads += 1,
            Err(_) => {}
        }
        result
    }

    /// Returns the units of a range, and memory to read them.
    pub(crate) fn begin_read(
        &self,
        checkpoint: &str,
        entry: &str,
        range: Range<u64>,
    ) -> Result<(ReadPlan, UnitPipe), StoreError> {
        let mut open = self.lock();
        let plan = open.volume.read_plan(checkpoint, entry, range)?;
        Ok((plan, open.take_pipe()))
    }

    /// Returns which copies of the manifest are damaged.
    pub(crate) fn check_manifest(&self) -> Result<[bool; 2], StoreError> {
        let OpenVolume { driver, volume, .. } = &mut *self.lock();
        driver.run(volume.check_manifest())
    }

    /// Rewrites a unit of an entry with these bytes, which must have its checksum.
    pub(crate) fn rewrite(
        &self,
        checkpoint: &str,
        entry: &str,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let OpenVolume { driver, volume, .. } = &mut *self.lock();
        let rewriting = volume.rewrite(checkpoint, entry, offset, bytes, unix_ms())?;
        driver.run(rewriting)
    }

    /// Takes the memory of a read back.
    pub(crate) fn end_read(&self, pipe: UnitPipe) {
        self.lock().idle_pipe = Some(pipe);
    }

    pub(crate) fn unit_bytes(&self) -> u64 {
        self.lock().volume.superblock().geometry.unit_bytes()
    }

    fn lock(&self) -> MutexGuard<'_, OpenVolume> {
        lock(&self.open)
    }
}

impl fmt::Debug for CheckpointStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckpointStore").field("summary", &self.summary()).finish_non_exhaustive()
    }
}

impl StoredCheckpoint {
    fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            name: checkpoint.name.as_str().to_owned(),
            step: checkpoint.step,
            created_ms: checkpoint.created_ms,
            entries: checkpoint.entries.len(),
            bytes: checkpoint.entries.iter().map(|entry| entry.length).sum(),
            metadata: checkpoint.metadata.clone(),
        }
    }
}

impl StoredEntry {
    fn of(entry: &CheckpointEntry) -> Self {
        let (name, checksums) = (entry.name.as_str().to_owned(), entry.checksums.clone());
        Self { name, length: entry.length, checksums }
    }
}

//! Saves: checkpoints whose entries are written before a commit makes them visible.

use std::mem;

use super::{Volume, all_done};
use crate::allocation::Extent;
use crate::deliberate_bugs::{self, Bug};
use crate::error::Error;
use crate::manifest::{Checkpoint, CheckpointEntry};
use crate::name::{CheckpointName, EntryName};
use crate::operation::{OperationOutcome, Request, WritePayload};
use crate::run::{Procedure, ProcedureStep};

/// Checkpoint that is not committed yet, or entries that a commit adds to a checkpoint. They have
/// space on the volume until [`Volume::abort`]. A volume can have many saves.
#[derive(Debug)]
pub struct Save {
    checkpoint: Checkpoint,
    mode: SaveMode,
    /// Whether each unit was written, for each entry.
    written: Vec<Vec<bool>>,
}

/// Effect of the commit of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SaveMode {
    /// There is a checkpoint more.
    Checkpoint,
    /// The entries are in the checkpoint of this name, instead of those of the same names. A
    /// missing checkpoint is made.
    Entries,
}

impl Volume {
    /// Begins a save without entries. Nothing is written.
    ///
    /// # Errors
    /// [`Error::Exists`] if a checkpoint has this name, [`Error::NoLease`] without a live lease.
    pub fn begin(
        &self,
        name: CheckpointName,
        step: u64,
        metadata: Vec<u8>,
        now_ms: u64,
    ) -> Result<Save, Error> {
        self.live_lease(now_ms)?;
        if self.table.checkpoint(name.as_str()).is_some() {
            return Err(Error::Exists(name.as_str().to_owned()));
        }
        let checkpoint =
            Checkpoint { name, step, created_ms: now_ms, metadata, entries: Vec::new() };
        Ok(Save { checkpoint, mode: SaveMode::Checkpoint, written: Vec::new() })
    }

    /// Begins a save whose commit adds entries to the checkpoint of this name. A missing checkpoint
    /// is made by the commit, with the step in its name. Entries that are there under the names of
    /// new ones are replaced. Nothing is written.
    ///
    /// # Errors
    /// [`Error::NoLease`] without a live lease.
    pub fn begin_entries(&self, name: CheckpointName, now_ms: u64) -> Result<Save, Error> {
        self.live_lease(now_ms)?;
        let checkpoint = Checkpoint::empty(name, now_ms);
        Ok(Save { checkpoint, mode: SaveMode::Entries, written: Vec::new() })
    }

    /// Adds an entry of `length` bytes to a save, allocates its units, and returns its index.
    /// Nothing is written.
    ///
    /// # Errors
    /// [`Error::Exists`] if the save has an entry of this name, [`Error::CapacityExceeded`] if free
    /// units do not suffice.
    pub fn add_entry(
        &mut self,
        save: &mut Save,
        name: EntryName,
        length: u64,
    ) -> Result<usize, Error> {
        if save.checkpoint.entries.iter().any(|entry| entry.name == name) {
            return Err(Error::Exists(name.as_str().to_owned()));
        }
        let units = self.superblock.geometry.units_of(length);
        let extents = self.take_data(units)?;
        let checksums = vec![0; units as usize];
        save.written.push(vec![false; units as usize]);
        save.checkpoint.entries.push(CheckpointEntry { name, length, extents, checksums });
        Ok(save.checkpoint.entries.len() - 1)
    }

    /// Makes an entry longer, whose length is a multiple of the unit, and allocates the units. If
    /// it fails, the entry is as it was. Nothing is written.
    ///
    /// # Errors
    /// [`Error::CapacityExceeded`] if free units do not suffice; [`Error::Range`] if there is no
    /// such entry, or its last unit has its bytes already.
    pub fn extend_entry(&mut self, save: &mut Save, index: usize, by: u64) -> Result<(), Error> {
        let geometry = self.superblock.geometry;
        let entry = save.checkpoint.entries.get_mut(index).ok_or(Error::Range)?;
        let length = entry.length.checked_add(by).ok_or(Error::Range)?;
        if !entry.length.is_multiple_of(geometry.unit_bytes()) {
            return Err(Error::Range);
        }
        let units = geometry.units_of(by);
        let taken = self.take_data(units)?;
        if deliberate_bugs::has(Bug::GrowInPlace)
            && let Some(last) = entry.extents.last_mut()
        {
            // The units behind the entry may be those of other entries.
            self.free.free(&taken);
            last.units += units;
        } else {
            append(&mut entry.extents, taken);
        }
        entry.length = length;
        let units = entry.checksums.len() + units as usize;
        entry.checksums.resize(units, 0);
        save.written[index].resize(units, false);
        Ok(())
    }

    /// Allocates units for data, and leaves room for the manifest of the next change.
    fn take_data(&mut self, units: u64) -> Result<Vec<Extent>, Error> {
        let unit_bytes = self.unit_bytes();
        let taken = self.free.take(units, unit_bytes)?;
        let of_manifest = self.superblock.geometry.units_of(self.superblock.manifest_bytes);
        let has_room = self.free.has_pair(of_manifest) || deliberate_bugs::has(Bug::SkipReserve);
        if units > 0 && !has_room {
            self.free.free(&taken);
            return Err(Error::CapacityExceeded {
                needed_bytes: (units + 2 * of_manifest) * unit_bytes,
                free_bytes: self.free_bytes(),
            });
        }
        Ok(taken)
    }

    /// Returns the procedure that writes `bytes` to an entry from `offset`, a multiple of the unit.
    /// They must end with a unit or with the entry. Each unit is a write of its own, whose payload
    /// is a range of `bytes`.
    ///
    /// The driver must end the writes within [`crate::LEASE_GRACE_MS`] after the end of the lease.
    ///
    /// # Errors
    /// [`Error::Range`] for bytes that are not inside the entry or do not begin and end as said,
    /// [`Error::NoLease`] without a live lease.
    pub fn write<'a>(
        &self,
        save: &'a mut Save,
        index: usize,
        offset: u64,
        bytes: &[u8],
        now_ms: u64,
    ) -> Result<Writing<'a>, Error> {
        let first = offset / self.unit_bytes();
        self.check_range(save, index, offset, bytes, now_ms)?;
        let mut requests = Vec::new();
        for (number, part) in bytes.chunks(self.unit_bytes() as usize).enumerate() {
            let begin = number * self.unit_bytes() as usize;
            let unit = self.begin_unit(save, index, first as usize + number, part)?;
            let range = begin..begin + part.len();
            let payload = WritePayload::Source { range, padding: unit.padding };
            requests.push(Request::Write { offset: unit.offset, payload, fua: false });
        }
        let written = &mut save.written[index][first as usize..][..requests.len()];
        Ok(Writing { written, requests, is_begun: false })
    }

    /// Begins to write one unit of an entry, for drivers that have units of several entries in
    /// flight. `bytes` are those of the entry from `offset`, a multiple of the unit, to the end of
    /// the unit or of the entry. After the write, the caller passes the result to
    /// [`Save::end_unit`]. The deadline of the write is that of [`Volume::write`].
    ///
    /// # Errors
    /// As [`Volume::write`]; [`Error::Range`] also for no bytes, and for more than a unit.
    pub fn write_unit(
        &self,
        save: &mut Save,
        index: usize,
        offset: u64,
        bytes: &[u8],
        now_ms: u64,
    ) -> Result<UnitWrite, Error> {
        self.check_range(save, index, offset, bytes, now_ms)?;
        if bytes.is_empty() || bytes.len() as u64 > self.unit_bytes() {
            return Err(Error::Range);
        }
        self.begin_unit(save, index, (offset / self.unit_bytes()) as usize, bytes)
    }

    /// Checks the lease, and that a range of an entry begins and ends with units.
    fn check_range(
        &self,
        save: &Save,
        index: usize,
        offset: u64,
        bytes: &[u8],
        now_ms: u64,
    ) -> Result<(), Error> {
        self.live_lease(now_ms)?;
        let unit_bytes = self.unit_bytes();
        let entry = save.checkpoint.entries.get(index).ok_or(Error::Range)?;
        let end = offset.checked_add(bytes.len() as u64).ok_or(Error::Range)?;
        let ends_well = end == entry.length || end < entry.length && end % unit_bytes == 0;
        if offset.is_multiple_of(unit_bytes) && ends_well { Ok(()) } else { Err(Error::Range) }
    }

    /// Computes the checksum of a unit, which counts as not written from now on.
    fn begin_unit(
        &self,
        save: &mut Save,
        index: usize,
        number: usize,
        bytes: &[u8],
    ) -> Result<UnitWrite, Error> {
        let entry = save.checkpoint.entries.get_mut(index).ok_or(Error::Range)?;
        let unit = entry.unit(number as u64).ok_or(Error::Range)?;
        entry.checksums[number] = crc32c::crc32c(bytes);
        save.written[index][number] = false;
        let padding = bytes.len().next_multiple_of(4096) - bytes.len();
        Ok(UnitWrite { index, number, offset: unit * self.unit_bytes(), padding })
    }

    /// Frees the units of a save. All its writes must have ended.
    pub fn abort(&mut self, save: Save) {
        if deliberate_bugs::has(Bug::LeakOnAbort) {
            return;
        }
        self.free.free(&extents(&save.checkpoint));
    }
}

/// A write of one unit, from [`Volume::write_unit`].
#[derive(Debug)]
#[must_use = "the unit counts as written after `Save::end_unit`"]
pub struct UnitWrite {
    index: usize,
    number: usize,
    /// First byte of the unit in the namespace.
    pub offset: u64,
    /// Number of zeroes that are written after the bytes.
    pub padding: usize,
}

impl Save {
    /// Gives the checkpoint this time of creation, in milliseconds since 1970, instead of the time
    /// at which the save began. Copies and replicas of a checkpoint have the same.
    #[must_use]
    pub fn created(mut self, created_ms: u64) -> Self {
        self.checkpoint.created_ms = created_ms;
        self
    }

    /// Counts a unit as written, after its write has succeeded.
    pub fn end_unit(&mut self, unit: UnitWrite) {
        self.written[unit.index][unit.number] = true;
    }

    /// Counts all units of an entry as written, by another process that computed these checksums.
    ///
    /// # Errors
    /// [`Error::Range`] if there is no such entry, or it has another number of units.
    pub fn accept(&mut self, index: usize, checksums: &[u32]) -> Result<(), Error> {
        let entry = self.checkpoint.entries.get_mut(index).ok_or(Error::Range)?;
        if entry.checksums.len() != checksums.len() {
            return Err(Error::Range);
        }
        entry.checksums.copy_from_slice(checksums);
        self.written[index].fill(true);
        Ok(())
    }

    /// The entries so far. The checksums of units that were not written are zero.
    pub fn entries(&self) -> &[CheckpointEntry] {
        &self.checkpoint.entries
    }

    pub(super) fn mode(&self) -> SaveMode {
        self.mode
    }

    /// Returns the checkpoint, an error if units of it were not written.
    pub(super) fn whole(&self) -> Result<&Checkpoint, Error> {
        let entries = self.checkpoint.entries.iter().zip(&self.written);
        for (entry, written) in entries {
            if written.contains(&false) {
                return Err(Error::Incomplete(entry.name.as_str().to_owned()));
            }
        }
        Ok(&self.checkpoint)
    }
}

/// Adds extents at the end, joined with the last one if they are adjacent.
fn append(extents: &mut Vec<Extent>, more: Vec<Extent>) {
    for next in more {
        match extents.last_mut() {
            Some(last) if last.end() == next.first => last.units += next.units,
            _ => extents.push(next),
        }
    }
}

pub(super) fn extents(checkpoint: &Checkpoint) -> Vec<Extent> {
    checkpoint.entries.iter().flat_map(|entry| entry.extents.iter().copied()).collect()
}

/// Procedure that writes a part of an entry.
#[derive(Debug)]
pub struct Writing<'a> {
    written: &'a mut [bool],
    requests: Vec<Request>,
    is_begun: bool,
}

impl Procedure for Writing<'_> {
    type Output = ();

    fn advance(&mut self, outcomes: Vec<OperationOutcome>) -> Result<ProcedureStep<()>, Error> {
        if !mem::replace(&mut self.is_begun, true) {
            return Ok(ProcedureStep::Ask(mem::take(&mut self.requests)));
        }
        all_done(outcomes)?;
        self.written.fill(true);
        Ok(ProcedureStep::Done(()))
    }
}

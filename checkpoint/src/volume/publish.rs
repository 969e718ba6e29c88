//! Changes of a volume; each is committed by the write of one superblock.

use super::edit::{Edit, Rename};
use super::open::superblock_reads;
use super::save::Save;
use super::{Volume, all_done, data};
use crate::allocation::Extent;
use crate::deliberate_bugs::{self, Bug};
use crate::error::{Error, VolumeFormatError};
use crate::manifest::{CheckpointTable, TableOrigin};
use crate::operation::{Failure, OperationOutcome, Request, WritePayload};
use crate::run::{Procedure, ProcedureStep};
use crate::selection::EntrySelection;
use crate::superblock::{LEASE_GRACE_MS, Lease, SUPERBLOCK_OFFSETS, Superblock};

/// Change of a volume: commits, renames, removals and a change of the lease that take effect
/// together.
#[derive(Clone, Debug, Default)]
pub struct Change<'a> {
    edits: Vec<Edit<'a>>,
    lease: Option<Option<Lease>>,
    generation: Option<u64>,
    repair: Option<RepairChange>,
}

/// Part of a change that belongs to the repair of a replica.
#[derive(Clone, Copy, Debug)]
enum RepairChange {
    /// The table becomes incomplete if the replica has lost a commit by damage.
    Claim,
    /// The table becomes incomplete.
    Begin,
    /// The table becomes that of the commit of this generation.
    End(u64),
}

impl<'a> Change<'a> {
    /// Makes a change that does nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the commit of a save, whose entries must be written.
    #[must_use]
    pub fn commit(self, save: &'a Save) -> Self {
        self.edit(Edit::Commit(save))
    }

    /// Adds the deletion of a checkpoint by name.
    #[must_use]
    pub fn delete(self, name: &str) -> Self {
        self.remove(name, EntrySelection::Whole)
    }

    /// Adds the removal of entries of a checkpoint, which is deleted with its last entry.
    #[must_use]
    pub fn remove(self, checkpoint: &str, selection: EntrySelection) -> Self {
        self.edit(Edit::Remove(checkpoint.to_owned(), selection))
    }

    /// Adds a rename of a checkpoint or of entries.
    #[must_use]
    pub fn rename(self, rename: Rename) -> Self {
        self.edit(Edit::Rename(rename))
    }

    /// Adds the deletion of all checkpoints but the last `count`, those of saves before included.
    #[must_use]
    pub fn keep(self, count: usize) -> Self {
        self.edit(Edit::Keep(count))
    }

    fn edit(mut self, edit: Edit<'a>) -> Self {
        self.edits.push(edit);
        self
    }

    /// Takes the lease, or renews it if this writer has it.
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = Some(Some(lease));
        self
    }

    /// Releases the lease, so that another writer can take it immediately.
    #[must_use]
    pub fn release(mut self) -> Self {
        self.lease = Some(None);
        self
    }

    /// Gives the superblock this generation instead of the next one. A writer of replicas gives all
    /// of them the same; see [`crate::ReplicaSet`].
    #[must_use]
    pub fn generation(mut self, generation: u64) -> Self {
        self.generation = Some(generation);
        self
    }

    /// Takes the lease of a replica that will be repaired. If a commit was lost on it by damage,
    /// its table is marked as incomplete, since the new superblock hides the damage.
    #[must_use]
    pub fn lease_for_repair(mut self, lease: Lease) -> Self {
        self.repair = Some(RepairChange::Claim);
        self.lease(lease)
    }

    /// Marks the table as incomplete. It stays so, whatever is committed, until the repair ends.
    #[must_use]
    pub(super) fn begin_repair(mut self) -> Self {
        self.repair = Some(RepairChange::Begin);
        self
    }

    /// Marks the table as complete: the copy of that of this generation.
    #[must_use]
    pub(super) fn end_repair(mut self, generation: u64) -> Self {
        self.repair = Some(RepairChange::End(generation));
        self
    }

    /// Returns the commit that made the table after the change, which has this generation.
    fn origin(&self, volume: &Volume, is_same: bool, generation: u64) -> TableOrigin {
        let forgets = deliberate_bugs::has(Bug::ForgetDamage);
        let has_lost = volume.is_fallen_back();
        let incomplete = || match volume.origin {
            TableOrigin::Committed(before) => {
                TableOrigin::Incomplete { before: (!has_lost).then_some(before) }
            }
            incomplete @ TableOrigin::Incomplete { .. } => incomplete,
        };
        match (self.repair, volume.origin) {
            (Some(RepairChange::Claim), _) if has_lost && !forgets => incomplete(),
            (Some(RepairChange::Begin), _) => incomplete(),
            (Some(RepairChange::End(copied)), _) => TableOrigin::Committed(copied),
            (_, TableOrigin::Committed(_)) if !is_same => TableOrigin::Committed(generation),
            (_, unchanged) => unchanged,
        }
    }

    /// Returns the table after the change, and the extents that the change frees.
    fn apply(&self, table: &CheckpointTable) -> Result<(CheckpointTable, Vec<Extent>), Error> {
        let (mut after, mut freed) = (table.clone(), Vec::new());
        self.edits.iter().try_for_each(|edit| edit.apply(&mut after, &mut freed))?;
        Ok((after, freed))
    }

    /// Whether the table may get longer.
    fn adds(&self) -> bool {
        !self.edits.iter().all(Edit::is_removal)
    }
}

/// Procedure that commits a change: compares the superblocks with those that the volume knows,
/// writes two copies of the manifest to free units, flushes, and overwrites the older superblock.
/// A manifest that the change does not alter is written only if a copy is damaged.
#[derive(Debug)]
pub struct Publishing<'a> {
    volume: &'a mut Volume,
    next: Superblock,
    table: CheckpointTable,
    origin: TableOrigin,
    /// The encoded table, if it is written.
    manifest: Option<Vec<u8>>,
    manifest_extents: [Extent; 2],
    freed: Vec<Extent>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begin,
    Check,
    Manifest,
    Flush,
    Superblock,
    Deallocate,
}

/// Returns the requests that write both copies of the manifest, padded to blocks of 4096 bytes.
pub(super) fn manifest_writes(superblock: &Superblock, mut manifest: Vec<u8>) -> Vec<Request> {
    manifest.resize(manifest.len().next_multiple_of(4096), 0);
    let write = |unit: u64| Request::Write {
        offset: unit * superblock.geometry.unit_bytes(),
        payload: WritePayload::Bytes(manifest.clone()),
        fua: false,
    };
    let copies = if deliberate_bugs::has(Bug::SkipSecondCopy) { 1 } else { 2 };
    superblock.manifest_units[..copies].iter().copied().map(write).collect()
}

impl Volume {
    /// Returns the procedure that commits a change. If it fails, the save of the change can be
    /// committed again or aborted.
    ///
    /// # Errors
    /// [`Error::NoLease`] or [`Error::Leased`] for the lease, [`Error::CapacityExceeded`] for the
    /// space of the manifest, [`Error::Missing`] for a name to remove or rename, [`Error::Fenced`]
    /// for a generation that is not above the last one or below that of its table,
    /// [`Error::Exists`] for a new name that is in use, [`Error::Incomplete`] for the save,
    /// [`Error::Reopen`] after [`Error::Unknown`].
    pub fn publish(&mut self, change: &Change<'_>, now_ms: u64) -> Result<Publishing<'_>, Error> {
        let lease = self.check_lease(change, now_ms)?;
        let (table, freed) = change.apply(&self.table)?;
        let generation = change.generation.unwrap_or(self.last_generation + 1);
        let is_same = table == self.table;
        let origin = change.origin(self, is_same, generation);
        let of_table = origin.generation().unwrap_or(0);
        if generation <= self.last_generation || generation < of_table {
            return Err(Error::Fenced);
        }
        if generation == u64::MAX {
            return Err(VolumeFormatError::Limit("generations").into());
        }
        let mut next = Superblock { generation, lease, ..self.superblock };
        let is_same = is_same && origin == self.origin;
        let mut manifest = None;
        let mut manifest_extents = self.superblock.manifest_extents();
        let is_damaged =
            self.damaged_copies.contains(&true) && !deliberate_bugs::has(Bug::KeepDamagedCopy);
        if !is_same || is_damaged {
            let encoded = table.encode(self.superblock.uuid, origin)?;
            let units = self.superblock.geometry.units_of(encoded.len() as u64);
            let allocated = if deliberate_bugs::has(Bug::OverwriteManifest) {
                Ok(manifest_extents)
            } else {
                self.allocate_manifest(units, change.adds().then_some(&*freed))
            };
            // Without room for other copies, a damaged one stays.
            if !is_same || allocated.is_ok() {
                manifest_extents = allocated?;
                next.manifest_units = manifest_extents.map(|copy| copy.first);
                next.manifest_bytes = encoded.len() as u64;
                next.manifest_crc32c = crc32c::crc32c(&encoded);
                manifest = Some(encoded);
            }
        }
        let reuse = if change.adds() { Bug::ReuseReplaced } else { Bug::ReuseBeforeCommit };
        if deliberate_bugs::has(reuse) && manifest.is_some() && !freed.is_empty() {
            // The manifest overwrites what is removed or replaced.
            self.free.free(&manifest_extents[..1]);
            manifest_extents[0].first = freed[0].first;
            next.manifest_units[0] = freed[0].first;
        }
        let state = State::Begin;
        let volume = self;
        Ok(Publishing { volume, next, table, origin, manifest, manifest_extents, freed, state })
    }

    /// Allocates the copies of the next manifest. A change that adds something, and passes the
    /// extents that it frees, must leave room for one more manifest: otherwise nothing could be
    /// deleted from a full volume.
    fn allocate_manifest(
        &mut self,
        units: u64,
        freed_by_addition: Option<&[Extent]>,
    ) -> Result<[Extent; 2], Error> {
        let mut free = self.free.clone();
        let copies = free.take_pair(units, self.unit_bytes())?;
        if let Some(freed) = freed_by_addition
            && !deliberate_bugs::has(Bug::SkipReserve)
        {
            let mut after = free.clone();
            after.free(freed);
            after.free(self.superseded().as_ref().map_or(&[], |copies| &copies[..]));
            after.take_pair(units, self.unit_bytes())?;
        }
        self.free = free;
        Ok(copies)
    }

    /// Returns the units of the manifest that no superblock names after the next commit.
    fn superseded(&self) -> Option<[Extent; 2]> {
        let present = self.manifest_extents[self.current];
        self.manifest_extents[self.older()].filter(|old| present != Some(*old))
    }

    /// Returns the lease after a change.
    fn check_lease(&self, change: &Change<'_>, now_ms: u64) -> Result<Option<Lease>, Error> {
        if self.is_unknown {
            return Err(Error::Reopen);
        }
        let Some(Some(wanted)) = change.lease else {
            let lease = self.live_lease(now_ms)?;
            return Ok(change.lease.map_or(Some(lease), |_| None));
        };
        let other = self.superblock.lease.filter(|lease| lease.number != wanted.number);
        let live = |lease: &Lease| now_ms < lease.expiry_ms.saturating_add(LEASE_GRACE_MS);
        match other.filter(live) {
            Some(Lease { host, expiry_ms, .. }) if !deliberate_bugs::has(Bug::IgnoreLease) => {
                Err(Error::Leased { host, expiry_ms })
            }
            _ => Ok(Some(wanted)),
        }
    }

    /// Returns the index of the superblock that is overwritten next, which is not the present one.
    fn older(&self) -> usize {
        let is_wrong = deliberate_bugs::has(Bug::OverwriteNewest);
        if is_wrong { self.current } else { 1 - self.current }
    }
}

impl Publishing<'_> {
    /// Fails if the superblocks are not those that the volume has read or written last.
    fn check(&self, outcomes: Vec<OperationOutcome>) -> Result<(), Error> {
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let bytes = match data(outcome) {
                // This superblock could not be read when the volume was opened either.
                Err(_) if self.volume.raw[index].is_empty() => continue,
                bytes => bytes?,
            };
            let is_same = bytes == self.volume.raw[index] || self.volume.raw[index].is_empty();
            if !is_same && !deliberate_bugs::has(Bug::IgnoreFence) {
                return Err(Error::Fenced);
            }
        }
        Ok(())
    }

    fn write_superblock(&self) -> Request {
        let slot = self.volume.older();
        let offset = SUPERBLOCK_OFFSETS[slot];
        let bytes = self.next.encode();
        let expected = self.volume.raw[slot].clone();
        let compares = self.volume.device.has_compare && !expected.is_empty();
        if compares && !deliberate_bugs::has(Bug::IgnoreFence) {
            return Request::CompareAndWrite { offset, expected, bytes };
        }
        let fua = !deliberate_bugs::has(Bug::SkipFua);
        Request::Write { offset, payload: WritePayload::Bytes(bytes), fua }
    }

    /// Handles the outcome of the write of the superblock.
    fn written(&mut self, outcomes: Vec<OperationOutcome>) -> Result<(), Error> {
        for outcome in outcomes {
            match outcome {
                OperationOutcome::Failed(Failure::Miscompare) => return Err(Error::Fenced),
                OperationOutcome::Failed(failure) => {
                    self.volume.is_unknown = true;
                    return Err(Error::Unknown(failure));
                }
                OperationOutcome::Done | OperationOutcome::Data(_) => {}
            }
        }
        self.adopt();
        Ok(())
    }

    /// Makes the committed superblock and table those of the volume.
    fn adopt(&mut self) {
        let volume = &mut *self.volume;
        let slot = volume.older();
        if self.next.manifest_units != volume.superblock.manifest_units {
            volume.damaged_copies = [false; 2];
        }
        volume.raw[slot] = self.next.encode();
        volume.current = slot;
        volume.superblock = self.next;
        volume.last_generation = self.next.generation;
        volume.table = std::mem::take(&mut self.table);
        volume.origin = self.origin;
        volume.lease = self.next.lease;
        volume.manifest_extents[slot] = Some(self.manifest_extents);
    }

    /// Frees the units of deleted checkpoints and of the superseded manifest.
    fn release(&mut self, old: Option<[Extent; 2]>) {
        let freed: Vec<_> = self.freed.iter().chain(old.iter().flatten()).copied().collect();
        self.volume.free.free(&freed);
        self.freed = freed;
    }

    fn deallocate(&self) -> Vec<Request> {
        let unit_bytes = self.volume.unit_bytes();
        let deallocate = |extent: &Extent| Request::Deallocate {
            offset: extent.first * unit_bytes,
            length: extent.units * unit_bytes,
        };
        self.freed.iter().map(deallocate).collect()
    }

    fn round(&mut self, outcomes: Vec<OperationOutcome>) -> Result<ProcedureStep<()>, Error> {
        match self.state {
            State::Begin => {
                self.state = State::Check;
                Ok(ProcedureStep::Ask(superblock_reads()))
            }
            State::Check => {
                self.check(outcomes)?;
                let Some(manifest) = self.manifest.take() else {
                    self.state = State::Superblock;
                    return Ok(ProcedureStep::Ask(vec![self.write_superblock()]));
                };
                self.state = State::Manifest;
                Ok(ProcedureStep::Ask(manifest_writes(&self.next, manifest)))
            }
            State::Manifest => {
                all_done(outcomes)?;
                self.state = State::Flush;
                let skips = deliberate_bugs::has(Bug::SkipFlush);
                Ok(ProcedureStep::Ask(if skips { Vec::new() } else { vec![Request::Flush] }))
            }
            State::Flush => {
                all_done(outcomes)?;
                self.state = State::Superblock;
                Ok(ProcedureStep::Ask(vec![self.write_superblock()]))
            }
            State::Superblock => {
                let old = self.volume.superseded();
                self.written(outcomes)?;
                self.release(old);
                self.state = State::Deallocate;
                Ok(ProcedureStep::Ask(self.deallocate()))
            }
            // The namespace may refuse the Deallocate; the commit has succeeded.
            State::Deallocate => Ok(ProcedureStep::Done(())),
        }
    }
}

impl Procedure for Publishing<'_> {
    type Output = ();

    fn advance(&mut self, outcomes: Vec<OperationOutcome>) -> Result<ProcedureStep<()>, Error> {
        let result = self.round(outcomes);
        let has_space = self.manifest_extents != self.volume.superblock.manifest_extents();
        if result.is_err() && !self.volume.is_unknown && has_space {
            self.volume.free.free(&self.manifest_extents);
        }
        result
    }
}

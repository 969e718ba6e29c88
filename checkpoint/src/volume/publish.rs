//! Commits: each makes a change of a volume by the write of one superblock.

use super::change::Change;
use super::open::superblock_reads;
use super::{Volume, all_done, data};
use crate::allocation::Extent;
use crate::deliberate_bugs::{self, Bug};
use crate::error::{Error, VolumeFormatError};
use crate::manifest::{CheckpointTable, TableOrigin};
use crate::operation::{Failure, OperationOutcome, Request, WritePayload};
use crate::run::{Procedure, ProcedureStep};
use crate::superblock::{LEASE_GRACE_MS, LEASE_SETTLE_MS, Lease, SUPERBLOCK_OFFSETS, Superblock};

/// Procedure that commits a change: compares the superblocks with those that the volume knows,
/// writes two copies of the manifest to free units, flushes, and overwrites the older superblock.
/// A manifest that the change does not alter is written only if a copy is damaged. A change that
/// takes the lease then pauses and compares the superblocks again, since another writer may have
/// found the lease free too.
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
    /// Whether the change takes the lease, which this writer does not have or no longer has.
    is_claim: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Begin,
    Check,
    Manifest,
    Flush,
    Superblock,
    /// The superblock with the lease is written, and another writer may still overwrite it.
    Pause,
    /// Both superblocks are read again.
    Confirm,
    /// The superblocks are read to learn who has the lease.
    Refused,
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
        // Once its own lease has ended, another writer may take it.
        let has_it = |lease: Lease| {
            let held = self.superblock.lease.filter(|held| now_ms < held.expiry_ms);
            held.is_some_and(|held| held.number == lease.number)
        };
        let is_claim = lease.is_some_and(|lease| !has_it(lease));
        Ok(Publishing {
            volume: self,
            next,
            table,
            origin,
            manifest,
            manifest_extents,
            freed,
            is_claim,
            state: State::Begin,
        })
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
    /// Fails if superblocks A and B are not these. An empty one could not be read when the volume
    /// was opened, and may have any bytes.
    fn check(&self, expected: &[Vec<u8>; 2], outcomes: Vec<OperationOutcome>) -> Result<(), Error> {
        let mut is_same = true;
        let mut found = Vec::new();
        for (expected, outcome) in expected.iter().zip(outcomes) {
            match data(outcome) {
                Ok(bytes) => {
                    is_same &= expected.is_empty() || bytes == *expected;
                    found.push(bytes);
                }
                Err(_) if expected.is_empty() => {}
                Err(error) => return Err(error),
            }
        }
        let is_accepted = is_same || deliberate_bugs::has(Bug::IgnoreFence);
        if is_accepted { Ok(()) } else { Err(self.fenced(&found)) }
    }

    /// Returns the error for superblocks that another writer has changed to these.
    fn fenced(&self, found: &[Vec<u8>]) -> Error {
        let found = found.iter().filter_map(|bytes| Superblock::decode(bytes).ok());
        let newest = found.max_by_key(|superblock| superblock.generation);
        match newest.and_then(|newest| newest.lease).filter(|_| self.is_claim) {
            Some(Lease { host, expiry_ms, .. }) => Error::Leased { host, expiry_ms },
            None => Error::Fenced,
        }
    }

    /// Fails if another writer has taken the lease too.
    fn confirm(&mut self, outcomes: Vec<OperationOutcome>) -> Result<(), Error> {
        let mut expected = self.volume.raw.clone();
        expected[self.volume.older()] = self.next.encode();
        self.check(&expected, outcomes).map_err(|error| match error {
            Error::Device(failure) => self.unknown(failure),
            error => error,
        })
    }

    fn unknown(&mut self, failure: Failure) -> Error {
        self.volume.is_unknown = true;
        Error::Unknown(failure)
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
    fn written(&mut self, outcomes: Vec<OperationOutcome>) -> Result<ProcedureStep<()>, Error> {
        match all_done(outcomes) {
            Ok(()) if self.is_claim && !deliberate_bugs::has(Bug::SkipSecondRead) => {
                self.state = State::Pause;
                Ok(ProcedureStep::Ask(vec![Request::Pause { ms: LEASE_SETTLE_MS }]))
            }
            Ok(()) => Ok(self.committed()),
            Err(Error::Device(Failure::Miscompare)) if self.is_claim => {
                self.state = State::Refused;
                Ok(ProcedureStep::Ask(superblock_reads()))
            }
            Err(Error::Device(Failure::Miscompare)) => Err(Error::Fenced),
            Err(Error::Device(failure)) if failure != Failure::WriteProtected => {
                Err(self.unknown(failure))
            }
            // Nothing was written.
            Err(error) => Err(error),
        }
    }

    /// Makes the change that of the volume, and asks to deallocate what it has freed.
    fn committed(&mut self) -> ProcedureStep<()> {
        let old = self.volume.superseded();
        self.adopt();
        self.release(old);
        self.state = State::Deallocate;
        ProcedureStep::Ask(self.deallocate())
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
                self.check(&self.volume.raw, outcomes)?;
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
            State::Superblock => self.written(outcomes),
            State::Pause => {
                self.state = State::Confirm;
                Ok(ProcedureStep::Ask(superblock_reads()))
            }
            State::Confirm => {
                self.confirm(outcomes)?;
                Ok(self.committed())
            }
            State::Refused => {
                let found: Vec<_> = outcomes.into_iter().flat_map(data).collect();
                Err(self.fenced(&found))
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

//! Repair of replicas that missed commits.

use std::ops::ControlFlow;

use feedrail_checkpoint::{Change, Checkpoint};

use crate::error::StoreError;
use crate::replicated_store::{Member, ReplicatedStore};
use crate::save::StoreSave;
use crate::store::{CheckpointStore, is_same};

/// Generation of the table of a replica that a repair has not completed: below those of all others,
/// so that none of them is hidden by it.
const INCOMPLETE: u64 = 0;

/// Changes that a repair made to a replica.
#[derive(Clone, Debug)]
pub struct RepairReport {
    /// Index of the replica.
    pub replica: usize,
    /// Names of the checkpoints that it got.
    pub copied: Vec<String>,
    /// Names of the checkpoints that it had and the newest replica has not.
    pub deleted: Vec<String>,
    /// Bytes that were copied.
    pub bytes: u64,
}

impl ReplicatedStore {
    /// Makes all stale replicas that answer equal to the newest one, and returns what was done to
    /// each. The store must be open for repair. `progress` is called with the number of bytes
    /// that were copied, and can stop the call.
    ///
    /// # Errors
    /// [`StoreError::Leased`] if a stale replica has the lease of another writer;
    /// [`StoreError::Volume`] if it is too small; [`StoreError::NoQuorum`], [`StoreError::Host`],
    /// [`StoreError::Damaged`], [`StoreError::Stopped`]. The replica is then still behind.
    pub fn repair(
        &mut self,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Vec<RepairReport>, StoreError> {
        let mut reports = Vec::new();
        for index in 0..self.members.len() {
            let Member::Stale(stale) = &self.members[index] else { continue };
            let stale = stale.clone();
            reports.push(self.repair_one(index, &stale, progress)?);
            self.members[index] = Member::Current(stale);
        }
        Ok(reports)
    }

    fn repair_one(
        &mut self,
        index: usize,
        stale: &CheckpointStore,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<RepairReport, StoreError> {
        self.renew_with(stale)?;
        let wanted = self.newest()?.checkpoints();
        let present = stale.checkpoints();
        let common =
            present.iter().zip(&wanted).take_while(|(one, other)| is_same(one, other)).count();
        let names = |all: &[Checkpoint]| {
            all.iter().map(|one| one.name.as_str().to_owned()).collect::<Vec<_>>()
        };
        let mut report = RepairReport {
            replica: index,
            copied: names(&wanted[common..]),
            deleted: names(&present[common..]),
            bytes: 0,
        };
        if !report.deleted.is_empty() {
            let change = Change::new().table_generation(INCOMPLETE);
            let change = report.deleted.iter().fold(change, |change, name| change.delete(name));
            stale.publish(&change)?;
        }
        for checkpoint in &wanted[common..] {
            self.copy(checkpoint, stale, progress)?;
            report.bytes += checkpoint.entries.iter().map(|entry| entry.length).sum::<u64>();
        }
        let complete = self.newest()?.replica().table_generation;
        stale.publish(&Change::new().table_generation(complete))?;
        self.renew_with(stale)?;
        Ok(report)
    }

    /// Renews the leases of all current members and of a stale one, with one generation.
    fn renew_with(&mut self, stale: &CheckpointStore) -> Result<(), StoreError> {
        let currents = self.currents().map(|(_, store)| store);
        let highest = currents.chain([stale]).map(|store| store.replica().generation).max();
        let next = highest.map(|generation| generation + 1);
        self.on_each(|store| store.renew(next))?;
        stale.renew(next)
    }

    fn copy(
        &mut self,
        checkpoint: &Checkpoint,
        stale: &CheckpointStore,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let name = checkpoint.name.as_str();
        let metadata = checkpoint.metadata.clone();
        let mut save = stale.begin_at(name, checkpoint.step, metadata, checkpoint.created_ms)?;
        for entry in &checkpoint.entries {
            let mut copy = EntryCopy { failed: None };
            let into = save.add(entry.name.as_str(), entry.length)?;
            let unit_bytes = save.unit_bytes();
            let mut at = 0;
            while at < entry.length {
                if stale.is_renewal_due() || self.currents().any(|(_, one)| one.is_renewal_due()) {
                    self.renew_with(stale)?;
                }
                let end = (at + unit_bytes * UNITS_AT_ONCE).min(entry.length);
                let read =
                    self.read_with(name, entry.name.as_str(), at..end, &mut |from, bytes| {
                        copy.write(&mut save, into, from, bytes, progress)
                    });
                if let Some(error) = copy.failed.take() {
                    return Err(error);
                }
                read?;
                at = end;
            }
        }
        save.commit_as(Some(INCOMPLETE))
    }
}

/// Units that are read before the leases of the other replicas are looked at again.
const UNITS_AT_ONCE: u64 = 64;

/// Copy of one entry, with the error of a write.
struct EntryCopy {
    failed: Option<StoreError>,
}

impl EntryCopy {
    fn write(
        &mut self,
        save: &mut StoreSave,
        into: crate::save::SaveEntry,
        at: u64,
        bytes: &[u8],
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match save.write_at(into, at, bytes) {
            Ok(()) => progress(bytes.len() as u64),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}

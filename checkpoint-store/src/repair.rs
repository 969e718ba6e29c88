//! Repair of replicas that missed commits.

use std::ops::ControlFlow;

use feedrail_checkpoint::{Checkpoint, RepairStep, ReplicaSet};

use crate::error::StoreError;
use crate::replicated_store::{Member, ReplicatedStore};
use crate::save::StoreSave;
use crate::store::CheckpointStore;

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
        let plan = stale.repair_plan(self.newest()?);
        let mut bytes = 0;
        for step in plan.steps() {
            match step {
                RepairStep::Renew => self.renew_with(stale)?,
                RepairStep::Publish(change) => stale.publish(&change)?,
                RepairStep::Copy(checkpoint) => {
                    self.copy(checkpoint, stale, progress)?;
                    bytes += checkpoint.entries.iter().map(|entry| entry.length).sum::<u64>();
                }
            }
        }
        let deleted = plan.deleted().iter().map(|name| name.as_str().to_owned()).collect();
        let copied = plan.copied().iter().map(|one| one.name.as_str().to_owned()).collect();
        Ok(RepairReport { replica: index, copied, deleted, bytes })
    }

    /// Renews the leases of all current members and of a stale one, with one generation.
    fn renew_with(&mut self, stale: &CheckpointStore) -> Result<(), StoreError> {
        let members = self.currents().map(|(_, store)| store).chain([stale]);
        let next = ReplicaSet::renewal_generation(members.map(CheckpointStore::last_generation));
        self.on_each(|store| store.renew(Some(next)))?;
        stale.renew(Some(next))
    }

    fn copy(
        &mut self,
        checkpoint: &Checkpoint,
        stale: &CheckpointStore,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let name = checkpoint.name.as_str();
        let metadata = checkpoint.metadata.clone();
        let created_ms = checkpoint.created_ms;
        let mut save = stale.begin_at(name, checkpoint.step, metadata, created_ms)?;
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
        save.commit()
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

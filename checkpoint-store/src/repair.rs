//! Repair of replicas that missed commits or have damaged units.

use std::ops::ControlFlow;

use feedrail_checkpoint::{Checkpoint, CheckpointEntry, Error, RepairPlan, RepairStep, ReplicaSet};

use crate::error::StoreError;
use crate::replicated_store::{Member, ReplicatedStore};
use crate::save::{SaveEntry, StoreSave};
use crate::store::CheckpointStore;
use crate::verify::DamagedUnit;

/// Units that are read before the leases are looked at again.
const UNITS_AT_ONCE: u64 = 64;

/// Extent of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepairScope {
    /// Stale replicas get the checkpoints that they missed. Others are not read.
    Missed,
    /// All other bytes of all replicas are read too, and units that are damaged are rewritten with
    /// the bytes of another replica.
    AllUnits,
}

/// Changes that a repair made to a replica.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// Index of the replica.
    pub replica: usize,
    /// Names of the checkpoints that it got.
    pub copied: Vec<String>,
    /// Names of the checkpoints that it had and the newest replica has not.
    pub deleted: Vec<String>,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Number of damaged units that were rewritten.
    pub rewritten: usize,
    /// Units that are still damaged: no other replica has their bytes, or the target did not keep
    /// them.
    pub damaged: Vec<DamagedUnit>,
}

impl RepairReport {
    /// Whether the replica missed nothing and has no damaged unit.
    fn is_empty(&self) -> bool {
        let is_changed = !self.copied.is_empty() || !self.deleted.is_empty();
        !is_changed && self.rewritten == 0 && self.damaged.is_empty()
    }
}

impl ReplicatedStore {
    /// Makes all stale replicas that answer equal to the newest one, and rewrites damaged units of
    /// all replicas if that is in the scope. Returns what was done to each stale replica, and to
    /// each other one on which units are damaged. The store must be open for repair. `progress` is
    /// called with the number of bytes that were copied or read, and can stop the call.
    ///
    /// # Errors
    /// [`StoreError::Leased`] if a stale replica has the lease of another writer;
    /// [`StoreError::Volume`] if it is too small; [`StoreError::NoQuorum`], [`StoreError::Host`],
    /// [`StoreError::Damaged`], [`StoreError::Stopped`]. A stale replica is then still behind.
    pub fn repair(
        &mut self,
        scope: RepairScope,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Vec<RepairReport>, StoreError> {
        let mut reports = Vec::new();
        let (mut stale, mut current) = (Vec::new(), Vec::new());
        for (index, member) in self.members.iter().enumerate() {
            match member {
                Member::Stale(store) => stale.push((index, store.clone())),
                Member::Current(store) => current.push((index, store.clone())),
                Member::Away(_) => {}
            }
        }
        for (index, store) in stale {
            let plan = store.repair_plan(self.newest()?);
            let report = self.repair_one((index, &store), &plan, scope, progress)?;
            reports.push(report);
            self.members[index] = Member::Current(store);
        }
        for (index, store) in current {
            let plan = store.unit_repair_plan();
            let report = self.repair_one((index, &store), &plan, scope, progress)?;
            reports.extend(Some(report).filter(|report| !report.is_empty()));
        }
        Ok(reports)
    }

    fn repair_one(
        &mut self,
        (index, store): (usize, &CheckpointStore),
        plan: &RepairPlan,
        scope: RepairScope,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<RepairReport, StoreError> {
        let mut report = RepairReport { replica: index, ..RepairReport::default() };
        if scope == RepairScope::AllUnits {
            // The next change writes damaged copies again; at the latest, that is the end of the
            // lease.
            store.check_manifest()?;
        }
        for step in plan.steps() {
            match step {
                RepairStep::Renew => self.renew_with(store)?,
                RepairStep::Publish(change) => store.publish(&change)?,
                RepairStep::Copy(checkpoint) => {
                    self.copy(checkpoint, (index, store), progress)?;
                    report.bytes += checkpoint.entries.iter().map(|one| one.length).sum::<u64>();
                }
                RepairStep::RewriteDamaged(_) if scope == RepairScope::Missed => {}
                RepairStep::RewriteDamaged(checkpoint) => {
                    self.rewrite_damaged(checkpoint, store, progress, &mut report)?;
                }
            }
        }
        report.deleted = plan.deleted().iter().map(|name| name.as_str().to_owned()).collect();
        report.copied = plan.copied().iter().map(|one| one.name.as_str().to_owned()).collect();
        Ok(report)
    }

    /// Renews the leases of all current members and of a stale one, with one generation.
    fn renew_with(&mut self, stale: &CheckpointStore) -> Result<(), StoreError> {
        let members = self.currents().map(|(_, store)| store).chain([stale]);
        let next = ReplicaSet::renewal_generation(members.map(CheckpointStore::last_generation));
        self.on_each(|store| store.renew(Some(next)))?;
        stale.renew(Some(next))
    }

    /// Renews the leases if one is due, that of the replica in repair included.
    fn renew_beside(&mut self, index: usize, store: &CheckpointStore) -> Result<(), StoreError> {
        if self.currents().any(|(current, _)| current == index) {
            return self.renew_if_due();
        }
        let is_due = store.is_renewal_due() || self.currents().any(|(_, one)| one.is_renewal_due());
        if is_due { self.renew_with(store) } else { Ok(()) }
    }

    fn copy(
        &mut self,
        checkpoint: &Checkpoint,
        (index, stale): (usize, &CheckpointStore),
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
                self.renew_beside(index, stale)?;
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

    /// Reads all units of a checkpoint on one replica, and rewrites those that are damaged.
    fn rewrite_damaged(
        &mut self,
        checkpoint: &Checkpoint,
        store: &CheckpointStore,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
        report: &mut RepairReport,
    ) -> Result<(), StoreError> {
        let name = checkpoint.name.as_str();
        let step_bytes = store.unit_bytes() * UNITS_AT_ONCE;
        for CheckpointEntry { name: entry, length, .. } in &checkpoint.entries {
            let mut at = 0;
            while at < *length {
                self.renew_beside(report.replica, store)?;
                let end = (at + step_bytes).min(*length);
                for unit in store.verify_range(name, entry.as_str(), at..end, progress)? {
                    match self.rewrite(&unit, (report.replica, store))? {
                        true => report.rewritten += 1,
                        false => report.damaged.push(unit),
                    }
                }
                at = end;
            }
        }
        Ok(())
    }

    /// Rewrites a unit with the bytes of another replica. Returns whether it is undamaged then.
    fn rewrite(
        &self,
        unit: &DamagedUnit,
        (index, store): (usize, &CheckpointStore),
    ) -> Result<bool, StoreError> {
        let DamagedUnit { checkpoint, entry, offset, length, .. } = unit;
        let mut bytes = vec![0; usize::try_from(*length).map_err(|_| Error::Range)?];
        let range = *offset..offset + length;
        let others = self.currents().filter(|(other, _)| *other != index);
        let is_read = others
            .map(|(_, other)| other.read(checkpoint, entry, range.clone(), &mut bytes))
            .any(|read| read.is_ok());
        if !is_read {
            return Ok(false);
        }
        match store.rewrite(checkpoint, entry, *offset, &bytes) {
            Err(error) if matches!(error.volume(), Some(Error::Damaged { .. })) => Ok(false),
            result => result.map(|()| true),
        }
    }
}

/// Copy of one entry, with the error of a write.
struct EntryCopy {
    failed: Option<StoreError>,
}

impl EntryCopy {
    fn write(
        &mut self,
        save: &mut StoreSave,
        into: SaveEntry,
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

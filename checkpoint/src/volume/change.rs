//! Changes of a volume, which are committed as a whole.

use super::Volume;
use super::edit::{Edit, Rename};
use super::save::Save;
use crate::allocation::Extent;
use crate::deliberate_bugs::{self, Bug};
use crate::error::Error;
use crate::manifest::{CheckpointTable, TableOrigin};
use crate::selection::EntrySelection;
use crate::superblock::Lease;

/// Change of a volume: commits, renames, removals and a change of the lease that take effect
/// together.
#[derive(Clone, Debug, Default)]
pub struct Change<'a> {
    edits: Vec<Edit<'a>>,
    pub(super) lease: Option<Option<Lease>>,
    pub(super) generation: Option<u64>,
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
    pub(super) fn origin(&self, volume: &Volume, is_same: bool, generation: u64) -> TableOrigin {
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
    pub(super) fn apply(
        &self,
        table: &CheckpointTable,
    ) -> Result<(CheckpointTable, Vec<Extent>), Error> {
        let (mut after, mut freed) = (table.clone(), Vec::new());
        self.edits.iter().try_for_each(|edit| edit.apply(&mut after, &mut freed))?;
        Ok((after, freed))
    }

    /// Whether the table may get longer.
    pub(super) fn adds(&self) -> bool {
        !self.edits.iter().all(Edit::is_removal)
    }
}

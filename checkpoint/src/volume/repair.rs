//! Repair of a replica that missed commits or has damaged units.

use super::{Change, Volume};
use crate::deliberate_bugs::{self, Bug};
use crate::manifest::Checkpoint;
use crate::name::CheckpointName;

/// Steps that make a replica equal to the newest one. The writer has the leases of both.
///
/// A replica that missed commits is changed, and checkpoints are copied to it. All units of the
/// checkpoints that it has already are then read, and rewritten if they are damaged; a replica that
/// missed nothing gets these steps only.
///
/// The table of the replica is incomplete from the first change to the last one, so that nobody
/// takes it for a table that was committed, whenever the repair is interrupted. Checkpoints that
/// both have are not copied, also when an interrupted repair is made again, unless the replica has
/// lost a commit by damage.
#[derive(Clone, Debug)]
pub struct RepairPlan {
    deleted: Vec<CheckpointName>,
    copied: Vec<Checkpoint>,
    kept: Vec<Checkpoint>,
    /// Whether the replica has missed nothing.
    is_current: bool,
    /// Generation of the table of the newest replica.
    generation: u64,
}

/// Step of a repair, from [`RepairPlan::steps`].
#[derive(Debug)]
pub enum RepairStep<'a> {
    /// The leases of the newest replicas and of the stale one are renewed, with one generation
    /// ([`crate::ReplicaSet::renewal_generation`]).
    Renew,
    /// The stale replica is changed.
    Publish(Change<'static>),
    /// A checkpoint of the newest replica is saved on the stale one, by a commit of its own.
    Copy(&'a Checkpoint),
    /// The units of a checkpoint are read on the replica. Those that are damaged are rewritten with
    /// those of another replica ([`Volume::rewrite`]).
    RewriteDamaged(&'a Checkpoint),
}

impl RepairPlan {
    /// Makes the plan for a replica that has missed nothing: only damaged units are rewritten.
    pub fn of_current(replica: &Volume) -> Self {
        let kept = replica.table.checkpoints.clone();
        let (deleted, copied) = (Vec::new(), Vec::new());
        Self { deleted, copied, kept, is_current: true, generation: 0 }
    }

    /// Makes the plan from the tables of the newest replica and of a stale one.
    pub fn new(newest: &Volume, stale: &Volume) -> Self {
        let (wanted, present) = (&newest.table.checkpoints, &stale.table.checkpoints);
        // A lost commit may have freed what the table names, and others may have it by now.
        let is_sound =
            stale.origin.generation().is_some() || deliberate_bugs::has(Bug::KeepAfterDamage);
        let pairs = present.iter().zip(wanted).filter(|_| is_sound);
        let common = pairs.take_while(|(one, other)| one.has_same_bytes(other)).count();
        Self {
            deleted: present[common..].iter().map(|one| one.name.clone()).collect(),
            copied: wanted[common..].to_vec(),
            kept: present[..common].to_vec(),
            is_current: false,
            generation: newest.origin.generation().unwrap_or(0),
        }
    }

    /// Checkpoints that the newest replica does not have, or has with other contents or after
    /// others that are copied.
    pub fn deleted(&self) -> &[CheckpointName] {
        &self.deleted
    }

    /// Checkpoints that the stale replica does not have, in the order in which they are copied.
    pub fn copied(&self) -> &[Checkpoint] {
        &self.copied
    }

    /// Returns the steps in their order. If one fails, the repair ends; it can be made again.
    pub fn steps(&self) -> impl Iterator<Item = RepairStep<'_>> {
        let is_early = deliberate_bugs::has(Bug::CompleteEarly);
        let begin = |change: Change<'static>| match is_early {
            true => change.end_repair(self.generation),
            false => change.begin_repair(),
        };
        let forgets = deliberate_bugs::has(Bug::ForgetDeletes);
        let deleted = self.deleted.iter().filter(|_| !forgets);
        let deletion = deleted.fold(Change::new(), |change, name| change.delete(name.as_str()));
        let is_changed = !self.deleted.is_empty() || !self.copied.is_empty();
        let first = is_changed.then(|| RepairStep::Publish(begin(deletion)));
        let last = RepairStep::Publish(Change::new().end_repair(self.generation));
        let copies = self.copied.iter().map(RepairStep::Copy);
        let before = std::iter::once(RepairStep::Renew).chain(first);
        let missed = before.chain(copies).chain([last, RepairStep::Renew]);
        let kept = self.kept.iter().filter(|_| !deliberate_bugs::has(Bug::ForgetUnits));
        missed.filter(|_| !self.is_current).chain(kept.map(RepairStep::RewriteDamaged))
    }
}

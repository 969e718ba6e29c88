//! Repairs of replicas, and bits that rot in units of data.

use std::collections::BTreeSet;
use std::ops::Range;

use feedrail_checkpoint::{
    Change, Checkpoint, CheckpointEntry, Error, Lease, ReadPiece, Reading, RepairPlan, RepairStep,
    Volume,
};

use super::device::Ended;
use super::replicas::{Member, World, currents, facts};

const UNIT: u64 = 1 << 12;

impl World {
    /// Makes a replica equal to the newest one, and rewrites its damaged units. `None` if that ends
    /// early; the replica is then away.
    pub(super) fn repair(
        &mut self,
        index: usize,
        members: &mut [Member],
        lease: Lease,
    ) -> Option<()> {
        let (mut volume, plan) = match std::mem::replace(&mut members[index], Member::Away) {
            Member::Away => return Some(()),
            Member::Current(volume) => {
                let plan = RepairPlan::of_current(&volume);
                (volume, plan)
            }
            Member::Stale(volume) => {
                let source = *currents(members).first()?;
                let Member::Current(newest) = &members[source] else { return None };
                let plan = RepairPlan::new(newest, &volume);
                (volume, plan)
            }
        };
        for step in plan.steps() {
            if self.random.chance(60_000) {
                return None;
            }
            self.lose_source(members);
            let is_made = match step {
                RepairStep::Renew => self.renew(members, index, &mut volume, lease),
                RepairStep::Publish(change) => self.publish(index, &mut volume, &change),
                RepairStep::Copy(checkpoint) => {
                    self.copy(checkpoint, members, index, &mut volume).is_some()
                }
                RepairStep::RewriteDamaged(checkpoint) => {
                    self.rewrite_damaged(checkpoint, members, index, &volume).is_some()
                }
            };
            if !is_made {
                return None;
            }
        }
        if let Some(&source) = currents(members).first()
            && let Member::Current(newest) = &members[source]
        {
            let rest = RepairPlan::new(newest, &volume);
            assert!(rest.copied().is_empty() && rest.deleted().is_empty(), "replicas differ");
        }
        members[index] = Member::Current(volume);
        Some(())
    }

    /// Now and then, the first current member does not answer any longer.
    fn lose_source(&mut self, members: &mut [Member]) {
        if self.random.chance(50_000)
            && let Some(&source) = currents(members).first()
        {
            members[source] = Member::Away;
        }
    }

    /// Saves a checkpoint of the newest replica on a stale one.
    fn copy(
        &mut self,
        checkpoint: &Checkpoint,
        members: &mut [Member],
        stale: usize,
        volume: &mut Volume,
    ) -> Option<()> {
        let (name, now_ms) = (checkpoint.name.clone(), self.now_ms);
        let metadata = checkpoint.metadata.clone();
        let save = volume.begin(name, checkpoint.step, metadata, now_ms).ok()?;
        let mut save = save.created(checkpoint.created_ms);
        for entry in &checkpoint.entries {
            self.lose_source(members);
            let names = (checkpoint.name.as_str(), entry.name.as_str());
            let bytes = self.read_good(members, names, 0..entry.length)?;
            let into = volume.add_entry(&mut save, entry.name.clone(), entry.length).ok()?;
            let writing = volume.write(&mut save, into, 0, &bytes, now_ms).unwrap();
            self.attempt(stale, writing, &bytes).then_some(())?;
        }
        self.publish(stale, volume, &Change::new().commit(&save)).then_some(())
    }

    /// Reads every unit of a checkpoint, and rewrites those that are damaged.
    fn rewrite_damaged(
        &mut self,
        checkpoint: &Checkpoint,
        members: &mut [Member],
        index: usize,
        volume: &Volume,
    ) -> Option<()> {
        for entry in &checkpoint.entries {
            let names = (checkpoint.name.as_str(), entry.name.as_str());
            for range in unit_ranges(entry) {
                let Err(damaged) = self.read(index, volume, names, range.clone()) else { continue };
                self.lose_source(members);
                let Some(good) = self.read_good(members, names, range.clone()) else { continue };
                let mut bad = good.clone();
                bad[0] ^= 1;
                let refused = volume.rewrite(names.0, names.1, range.start, &bad, self.now_ms);
                assert!(matches!(refused, Err(Error::Damaged { .. })), "wrong bytes are written");
                let rewriting = volume.rewrite(names.0, names.1, range.start, &good, self.now_ms);
                self.attempt(index, rewriting.unwrap(), &[]).then_some(())?;
                self.rotten.remove(&(index, damaged));
                self.tally.rewritten += 1;
                if self.random.chance(300_000) {
                    self.devices[index].lose_cache();
                }
            }
        }
        Some(())
    }

    /// No current member has a damaged unit whose bytes another member has.
    pub(super) fn check_units(&mut self, members: &[Member]) {
        for index in currents(members) {
            let Member::Current(volume) = &members[index] else { continue };
            for checkpoint in &volume.manifest().checkpoints {
                for entry in &checkpoint.entries {
                    let names = (checkpoint.name.as_str(), entry.name.as_str());
                    for range in unit_ranges(entry) {
                        let is_good = self.read(index, volume, names, range.clone()).is_ok();
                        let good = self.read_good(members, names, range);
                        assert!(is_good || good.is_none(), "a damaged unit is not rewritten");
                    }
                }
            }
        }
    }

    /// Reads bytes of an entry from the first current member that has them undamaged.
    fn read_good(
        &mut self,
        members: &[Member],
        names: (&str, &str),
        range: Range<u64>,
    ) -> Option<Vec<u8>> {
        currents(members).into_iter().find_map(|index| match &members[index] {
            Member::Current(volume) => self.read(index, volume, names, range.clone()).ok(),
            Member::Stale(_) | Member::Away => None,
        })
    }

    /// Reads bytes of an entry. If a unit is damaged, returns its place in the namespace; its bits
    /// must have rotted.
    pub(super) fn read(
        &mut self,
        index: usize,
        volume: &Volume,
        names: (&str, &str),
        range: Range<u64>,
    ) -> Result<Vec<u8>, u64> {
        let read = self.try_read(index, volume, names, range);
        let has_rotted = |place: &u64| self.rotten.contains_key(&(index, *place));
        assert!(read.as_ref().err().is_none_or(has_rotted), "what is committed is damaged");
        read
    }

    fn try_read(
        &mut self,
        index: usize,
        volume: &Volume,
        names: (&str, &str),
        range: Range<u64>,
    ) -> Result<Vec<u8>, u64> {
        let plan = volume.read_plan(names.0, names.1, range).unwrap();
        match self.devices[index].drive(Reading::new(plan), &[]) {
            Ended::Well(Ok(bytes)) => Ok(bytes),
            Ended::Well(Err(Error::Damaged { offset })) => Err(offset),
            ended => panic!("{ended:?} of a read"),
        }
    }

    /// Flips bits in units of data, if all replicas are good. No unit rots on two replicas.
    pub(super) fn rot(&mut self) {
        let volumes = self.open([true; 3]);
        self.forget_reused(&volumes);
        let Ok(latest) = self.set.latest(&facts(&volumes)) else { return };
        let newest = volumes[latest].as_ref().unwrap();
        if !self.random.chance(700_000) {
            return;
        }
        for checkpoint in newest.manifest().checkpoints.clone() {
            for entry in &checkpoint.entries {
                for range in unit_ranges(entry) {
                    let index = self.random.index(volumes.len());
                    let names = (checkpoint.name.as_str(), entry.name.as_str());
                    let plan = volumes[index].as_ref().unwrap().read_plan(names.0, names.1, range);
                    let Ok(plan) = plan else { continue };
                    let ReadPiece { offset, length, crc32c, .. } = plan.pieces[0];
                    let has_rotted = self.rotten.values().any(|one| *one == crc32c);
                    if has_rotted || !self.random.chance(400_000) {
                        continue;
                    }
                    let at = offset as usize + self.random.index(length);
                    self.devices[index].durable()[at] ^= 1 << self.random.below(8);
                    self.rotten.insert((index, offset), crc32c);
                    self.tally.rotted += 1;
                }
            }
        }
    }

    /// Forgets rotten units whose space is free or has other bytes by now.
    fn forget_reused(&mut self, volumes: &[Option<Volume>]) {
        let mut damaged = BTreeSet::new();
        for (index, volume) in volumes.iter().flatten().enumerate() {
            for checkpoint in &volume.manifest().checkpoints {
                for entry in &checkpoint.entries {
                    let names = (checkpoint.name.as_str(), entry.name.as_str());
                    for range in unit_ranges(entry) {
                        // A table that is not the newest may name units that others have by now.
                        let read = self.try_read(index, volume, names, range);
                        damaged.extend(read.err().map(|place| (index, place)));
                    }
                }
            }
        }
        self.rotten.retain(|place, _| damaged.contains(place));
    }
}

/// Returns the bytes of each unit of an entry.
fn unit_ranges(entry: &CheckpointEntry) -> impl Iterator<Item = Range<u64>> {
    let length = entry.length;
    (0..length).step_by(UNIT as usize).map(move |from| from..length.min(from + UNIT))
}

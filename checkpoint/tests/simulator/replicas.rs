//! Three replicas of a volume with a quorum of two. Replicas miss commits, lose power and bytes,
//! and are repaired; repairs end at each of their steps.

use std::collections::BTreeMap;

use feedrail_checkpoint::{
    Change, CheckpointName, EntryName, Lease, Procedure, Replica, ReplicaError, ReplicaSet,
    SUPERBLOCK_OFFSETS, Volume,
};
use splitmix64::SplitMix64;
use uuid::Uuid;

use super::device::{Ended, SimulatedDevice};
use super::model::{self, Contents, NameChange, random_checkpoint, random_file};
use super::world::{format, open};

const REPLICAS: usize = 3;
const QUORUM: usize = 2;
const LEASE_MS: u64 = 1_000;
/// Operations within which a replica loses power, if it does.
const CUT_WITHIN: u64 = 10;

/// Numbers of events in a world of replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaTally {
    pub(crate) acknowledged: u64,
    pub(crate) below_quorum: u64,
    pub(crate) repaired: u64,
    pub(crate) repairs_cut: u64,
    pub(crate) refused: u64,
    pub(crate) damaged: u64,
    pub(crate) rotted: u64,
    pub(crate) rewritten: u64,
}

/// Change that is made on all replicas.
enum WorldChange {
    Keep(usize),
    Names(NameChange),
    /// A checkpoint of one entry, or an entry of a checkpoint, with its bytes.
    Save {
        is_file: bool,
        place: (String, String),
        bytes: Vec<u8>,
    },
}

pub(super) struct World {
    pub(super) set: ReplicaSet,
    pub(super) devices: Vec<SimulatedDevice>,
    pub(super) random: SplitMix64,
    pub(super) now_ms: u64,
    /// Checkpoints after each commit that was begun, by its generation.
    states: BTreeMap<u64, Contents>,
    /// Generation of the last commit that reached the quorum.
    acknowledged: u64,
    /// Number of saves, which names them.
    saves: u64,
    /// Checksums of units whose bits have rotted, by replica and place in the namespace.
    pub(super) rotten: BTreeMap<(usize, u64), u32>,
    pub(super) tally: ReplicaTally,
}

/// Replica as the writer of a session knows it.
pub(super) enum Member {
    Current(Volume),
    Stale(Volume),
    Away,
}

/// Runs the world of a seed. Panics if two replicas that answer lack an acknowledged commit or show
/// anything that was never committed, if one alone is taken for the latest, or if three do not
/// suffice to continue.
pub(crate) fn run_replicas(seed: u64) -> ReplicaTally {
    let device = |index| {
        let mut device = SimulatedDevice::new(72 << 12, seed ^ index);
        format(&mut device, 12);
        device
    };
    let mut world = World {
        set: ReplicaSet::new(REPLICAS, QUORUM).unwrap(),
        devices: (0..REPLICAS as u64).map(device).collect(),
        random: SplitMix64::new(seed),
        now_ms: 1,
        states: BTreeMap::from([(1, Contents::new())]),
        acknowledged: 1,
        saves: 0,
        rotten: BTreeMap::new(),
        tally: ReplicaTally::default(),
    };
    for _ in 0..8 {
        world.session();
        world.now_ms += 100 * LEASE_MS;
        world.rot();
        world.damage();
        world.check();
    }
    world.tally
}

impl World {
    /// Opens the replicas that answer.
    pub(super) fn open(&mut self, answers: [bool; REPLICAS]) -> Vec<Option<Volume>> {
        let devices = self.devices.iter_mut().zip(answers);
        devices.map(|(device, answers)| answers.then(|| open(device, true).unwrap())).collect()
    }

    /// Each pair of replicas, and all three, show the last acknowledged commit or a later one, or
    /// say that they do not suffice; none is the latest alone.
    fn check(&mut self) {
        for absent in 0..=REPLICAS {
            let volumes = self.open([0, 1, 2].map(|index| index != absent));
            let facts = facts(&volumes);
            match self.set.latest(&facts) {
                Ok(latest) => self.check_latest(latest, volumes[latest].as_ref().unwrap()),
                Err(error) => {
                    self.tally.refused += 1;
                    assert_ne!(absent, REPLICAS, "all replicas do not suffice: {error}");
                    let mut answering = facts.iter().zip(&volumes).filter(|(_, one)| one.is_some());
                    let is_behind = |(fact, _): (&Option<Replica>, _)| {
                        fact.is_none_or(|fact| !fact.is_complete)
                    };
                    assert!(answering.any(is_behind), "two good replicas do not suffice: {error}");
                }
            }
            for (index, fact) in facts.into_iter().enumerate() {
                let mut alone = [None; REPLICAS];
                alone[index] = fact;
                let refused = self.set.latest(&alone);
                assert!(matches!(refused, Err(ReplicaError::TooFew { .. })), "one decides alone");
            }
        }
    }

    fn check_latest(&mut self, index: usize, volume: &Volume) {
        let generation = volume.replica().unwrap().table_generation;
        assert!(generation >= self.acknowledged, "an acknowledged commit is lost");
        let state = self.states.get(&generation).expect("a commit of this generation").clone();
        let seen = self.read_all(index, volume, &state);
        assert_eq!(seen, state, "not what was committed");
    }

    /// Reads the checkpoints of a volume. Entries with rotten units count as these.
    fn read_all(&mut self, index: usize, volume: &Volume, state: &Contents) -> Contents {
        let mut contents = Contents::new();
        for checkpoint in &volume.manifest().checkpoints {
            let name = checkpoint.name.as_str();
            let entries = contents.entry(name.to_owned()).or_default();
            for entry in &checkpoint.entries {
                let names = (name, entry.name.as_str());
                let bytes = self.read(index, volume, names, 0..entry.length);
                entries.insert(
                    names.1.to_owned(),
                    bytes.unwrap_or_else(|_| state[names.0][names.1].clone()),
                );
            }
        }
        contents
    }

    /// Damages the newest superblock of a replica that has two, if none is incomplete or damaged.
    fn damage(&mut self) {
        let volumes = self.open([true; REPLICAS]);
        let is_good = |one: &Option<Replica>| one.is_some_and(|one| one.is_complete);
        let is_damaged = !self.rotten.is_empty() || !facts(&volumes).iter().all(is_good);
        if is_damaged || !self.random.chance(300_000) {
            return;
        }
        let index = self.random.index(REPLICAS);
        let device = &mut self.devices[index];
        let generation = volumes[index].as_ref().unwrap().superblock().generation.to_le_bytes();
        let [a, b] = SUPERBLOCK_OFFSETS.map(|offset| offset as usize);
        if device.durable()[b] != 0 {
            let is_first = device.durable()[a + 48..a + 56] == generation;
            device.durable()[if is_first { a } else { b } + 60] ^= 1;
            self.tally.damaged += 1;
        }
    }

    /// A writer opens the replicas that answer, takes their leases, repairs the stale ones or does
    /// not, and saves checkpoints. It may end at any time.
    fn session(&mut self) {
        let absent = self.random.index(REPLICAS + 2);
        let volumes = self.open([0, 1, 2].map(|index| index != absent));
        let facts = facts(&volumes);
        let Ok(latest) = self.set.latest(&facts) else {
            self.tally.refused += 1;
            return;
        };
        let generation = self.set.writer_generation(&facts).unwrap();
        let stale = self.set.stale(&facts).unwrap();
        let number = 1 + self.random.below(1 << 40);
        let lease = Lease { host: Uuid::nil(), number, expiry_ms: self.now_ms + LEASE_MS };
        let is_repair = self.random.chance(600_000);
        let mut members: Vec<_> = volumes.into_iter().map(|_| Member::Away).collect();
        for (index, fact) in facts.into_iter().enumerate() {
            let is_stale = fact.is_none() || stale.contains(&index);
            if index == absent || is_stale && !is_repair || self.random.chance(150_000) {
                continue;
            }
            let mut volume = open(&mut self.devices[index], true).unwrap();
            let claim = if is_stale {
                Change::new().lease_for_repair(lease)
            } else {
                Change::new().lease(lease)
            };
            if self.publish(index, &mut volume, &claim.generation(generation)) {
                members[index] =
                    if is_stale { Member::Stale(volume) } else { Member::Current(volume) };
            }
        }
        let has_lease = |one: &&Member| !matches!(one, Member::Away);
        let leased = members.iter().filter(has_lease).count();
        if leased < self.set.lease_quorum() {
            self.tally.below_quorum += 1;
            return;
        }
        if is_repair {
            let is_stale = |index: &usize| matches!(members[*index], Member::Stale(_));
            let (stale, others): (Vec<_>, Vec<_>) = (0..REPLICAS).partition(is_stale);
            for &index in stale.iter().chain(&others) {
                if self.repair(index, &mut members, lease).is_none() {
                    return self.tally.repairs_cut += 1;
                }
            }
            self.tally.repaired += stale.len() as u64;
            // One that was lost may have been the only one with the bytes of a unit.
            if members.iter().filter(has_lease).count() == leased {
                self.check_units(&members);
            }
        }
        assert!(latest < REPLICAS);
        for _ in 0..3 {
            if currents(&members).len() < QUORUM || !self.change(&mut members) {
                self.tally.below_quorum += 1;
                return;
            }
        }
    }

    /// Executes a procedure on a replica, which may lose power or fail operations. Returns whether
    /// it succeeded.
    pub(super) fn attempt<P: Procedure>(
        &mut self,
        index: usize,
        procedure: P,
        source: &[u8],
    ) -> bool {
        let device = &mut self.devices[index];
        if self.random.chance(30_000) {
            device.power_cut_in = Some(self.random.below(CUT_WITHIN));
        }
        if self.random.chance(20_000) {
            device.failures_per_million = 200_000;
        }
        let ended = device.drive(procedure, source);
        (device.power_cut_in, device.failures_per_million) = (None, 0);
        matches!(ended, Ended::Well(Ok(_)))
    }

    pub(super) fn publish(
        &mut self,
        index: usize,
        volume: &mut Volume,
        change: &Change<'_>,
    ) -> bool {
        let publishing = volume.publish(change, self.now_ms);
        publishing.is_ok_and(|publishing| self.attempt(index, publishing, &[]))
    }

    /// Renews all leases with one generation.
    pub(super) fn renew(
        &mut self,
        members: &mut [Member],
        stale: usize,
        volume: &mut Volume,
        lease: Lease,
    ) -> bool {
        let current = |one: &Member| match one {
            Member::Current(volume) => Some(volume.last_generation()),
            Member::Stale(_) | Member::Away => None,
        };
        let last = members.iter().filter_map(current).chain([volume.last_generation()]);
        let generation = ReplicaSet::renewal_generation(last);
        let renewal = Change::new().lease(lease).generation(generation);
        self.on_each(members, |world, index, volume| world.publish(index, volume, &renewal)) > 0
            && self.publish(stale, volume, &renewal)
    }

    /// Calls a function for each current member; those for which it fails are away. Returns the
    /// number of the others.
    fn on_each(
        &mut self,
        members: &mut [Member],
        mut call: impl FnMut(&mut Self, usize, &mut Volume) -> bool,
    ) -> usize {
        for (index, member) in members.iter_mut().enumerate() {
            if let Member::Current(volume) = member
                && !call(self, index, volume)
            {
                *member = Member::Away;
            }
        }
        currents(members).len()
    }

    /// Makes a change on the replicas that have not missed one. Returns whether that was
    /// acknowledged.
    fn change(&mut self, members: &mut [Member]) -> bool {
        let first = currents(members)[0];
        let Member::Current(newest) = &members[first] else { return false };
        let generation = newest.last_generation() + 1;
        let before = newest.replica().unwrap().table_generation;
        let order = newest.manifest().checkpoints.iter().map(|one| one.name.as_str().to_owned());
        let order: Vec<_> = order.collect();
        let Some((change, after)) = self.random_change(&self.states[&before].clone(), &order)
        else {
            return true;
        };
        let replaced = self.states.insert(generation, after);
        assert!(replaced.is_none(), "two commits have one generation");
        let have = self.on_each(members, |world, index, volume| {
            // Now and then, it does not answer any longer.
            !world.random.chance(200_000)
                && world.make(index, volume, &change, generation).is_some()
        });
        let is_acknowledged = self.set.is_committed(have);
        if is_acknowledged {
            let Member::Current(one) = &members[currents(members)[0]] else { return false };
            // That of the table before, if the change alters nothing.
            self.acknowledged = one.replica().unwrap().table_generation;
            self.tally.acknowledged += 1;
        }
        is_acknowledged
    }

    /// Returns a change and the checkpoints after it, `None` for one that is refused.
    fn random_change(
        &mut self,
        before: &Contents,
        order: &[String],
    ) -> Option<(WorldChange, Contents)> {
        let mut after = before.clone();
        let random = &mut self.random;
        match random.below(10) {
            0..3 => {
                let kept = random.index(3);
                let surplus = order.len().saturating_sub(kept);
                order[..surplus].iter().for_each(|name| drop(after.remove(name)));
                Some((WorldChange::Keep(kept), after))
            }
            3..5 => {
                let names = NameChange::random(random, before);
                let after = names.apply(before).ok()?;
                Some((WorldChange::Names(names), after))
            }
            kind => {
                self.saves += 1;
                let bytes: Vec<u8> =
                    (0..random.index(9_000)).map(|at| (at + self.saves as usize) as u8).collect();
                let is_file = kind < 8;
                let place = match is_file {
                    true => (random_checkpoint(random, before), random_file(random).to_owned()),
                    false => (format!("step-{}", self.saves), "entry".to_owned()),
                };
                let names = (place.0.as_str(), place.1.as_str());
                let after = model::with_file(before, names, bytes.clone()).ok()?;
                Some((WorldChange::Save { is_file, place, bytes }, after))
            }
        }
    }

    /// Makes a change on one replica, `None` if that fails.
    fn make(
        &mut self,
        index: usize,
        volume: &mut Volume,
        change: &WorldChange,
        generation: u64,
    ) -> Option<()> {
        let with = Change::new().generation(generation);
        let is_made = match change {
            WorldChange::Keep(kept) => self.publish(index, volume, &with.keep(*kept)),
            WorldChange::Names(names) => {
                let change = names.add_to(with, self.now_ms).unwrap();
                self.publish(index, volume, &change)
            }
            WorldChange::Save { is_file, place, bytes } => {
                let (name, now_ms) = (CheckpointName::new(&place.0).unwrap(), self.now_ms);
                let save = match is_file {
                    true => volume.begin_entries(name, now_ms),
                    false => volume.begin(name, self.saves, Vec::new(), now_ms),
                };
                let (mut save, entry) = (save.unwrap(), EntryName::new(&place.1).unwrap());
                let at = volume.add_entry(&mut save, entry, bytes.len() as u64).ok()?;
                let writing = volume.write(&mut save, at, 0, bytes, now_ms).unwrap();
                self.attempt(index, writing, bytes)
                    && self.publish(index, volume, &with.commit(&save))
            }
        };
        is_made.then_some(())
    }
}

pub(super) fn facts(volumes: &[Option<Volume>]) -> Vec<Option<Replica>> {
    volumes.iter().map(|one| one.as_ref().and_then(Volume::replica)).collect()
}

/// Returns the indexes of the members that have the newest checkpoints.
pub(super) fn currents(members: &[Member]) -> Vec<usize> {
    let is_current = |index: &usize| matches!(members[*index], Member::Current(_));
    (0..members.len()).filter(is_current).collect()
}

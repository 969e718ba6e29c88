//! Three replicas of a volume with a quorum of two. Some replicas miss commits.

use std::collections::BTreeSet;

use feedrail_checkpoint::{
    Change, CheckpointName, EntryName, Lease, ReplicaError, ReplicaSet, Volume,
};
use splitmix64::SplitMix64;
use uuid::Uuid;

use super::device::{Ended, SimulatedDevice};
use super::world::{format, open};

const REPLICAS: usize = 3;
const QUORUM: usize = 2;
const LEASE_MS: u64 = 1_000;

/// Numbers of events in a world of replicas.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaTally {
    pub(crate) acknowledged: u64,
    pub(crate) below_quorum: u64,
    pub(crate) repaired: u64,
}

struct World {
    set: ReplicaSet,
    devices: Vec<SimulatedDevice>,
    random: SplitMix64,
    now_ms: u64,
    /// Names of checkpoints whose commit reached the quorum.
    acknowledged: BTreeSet<String>,
    /// Number of saves, which names them.
    saves: u64,
    tally: ReplicaTally,
}

/// Runs the world of a seed. Panics if two replicas that answer lack an acknowledged commit, or if
/// one alone is taken for the latest.
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
        acknowledged: BTreeSet::new(),
        saves: 0,
        tally: ReplicaTally::default(),
    };
    for _ in 0..6 {
        world.session();
        world.now_ms += 100 * LEASE_MS;
        world.check();
    }
    world.tally
}

impl World {
    /// Opens the replicas that answer.
    fn open(&mut self, answers: [bool; REPLICAS]) -> Vec<Option<Volume>> {
        let devices = self.devices.iter_mut().zip(answers);
        devices.map(|(device, answers)| answers.then(|| open(device, true).unwrap())).collect()
    }

    /// Each pair of replicas has all acknowledged commits; none is the latest alone.
    fn check(&mut self) {
        for absent in 0..REPLICAS {
            let volumes = self.open([0, 1, 2].map(|index| index != absent));
            let facts: Vec<_> =
                volumes.iter().map(|one| one.as_ref().map(Volume::replica)).collect();
            let latest = self.set.latest(&facts).unwrap();
            let seen = names(volumes[latest].as_ref().unwrap());
            assert!(seen.is_superset(&self.acknowledged), "an acknowledged commit is lost");
            for (index, fact) in facts.into_iter().enumerate() {
                let mut alone = [None; REPLICAS];
                alone[index] = fact;
                let refused = self.set.latest(&alone);
                assert!(matches!(refused, Err(ReplicaError::TooFew { .. })), "one decides alone");
            }
        }
    }

    /// A writer repairs the stale replicas that answer, takes the lease and saves checkpoints.
    fn session(&mut self) {
        let absent = self.random.index(REPLICAS + 1);
        let answers = [0, 1, 2].map(|index| index != absent);
        let volumes = self.open(answers);
        let facts: Vec<_> = volumes.iter().map(|one| one.as_ref().map(Volume::replica)).collect();
        let latest = self.set.latest(&facts).unwrap();
        let mut generation = self.set.writer_generation(&facts).unwrap();
        let stale = self.set.stale(&facts).unwrap();
        let newest = self.devices[latest].clone();
        let mut volumes: Vec<_> = answers.map(|_| None).into();
        let number = 1 + self.random.below(1 << 40);
        let lease = Lease { host: Uuid::nil(), number, expiry_ms: self.now_ms + LEASE_MS };
        let claim = Change::new().lease(lease).generation(generation);
        for index in 0..REPLICAS {
            if !answers[index] || self.random.chance(250_000) {
                continue;
            }
            let device = &mut self.devices[index];
            if stale.contains(&index) {
                // With the lease in one write of a superblock: a generation never falls.
                device.copy_from(&newest);
                self.tally.repaired += 1;
            }
            let mut volume = open(device, true).unwrap();
            let publishing = volume.publish(&claim, self.now_ms).unwrap();
            assert_eq!(device.drive(publishing, &[]), Ended::Well(Ok(())));
            volumes[index] = Some(volume);
        }
        if volumes.iter().flatten().count() < self.set.lease_quorum() {
            self.tally.below_quorum += 1;
            return;
        }
        for _ in 0..3 {
            generation += 1;
            if !self.save(&mut volumes, generation) {
                return;
            }
        }
    }

    /// Commits a checkpoint on the replicas that have not missed a change. Returns whether that was
    /// acknowledged.
    fn save(&mut self, volumes: &mut [Option<Volume>], generation: u64) -> bool {
        self.saves += 1;
        let name = format!("step-{}", self.saves);
        let now_ms = self.now_ms;
        for (index, slot) in volumes.iter_mut().enumerate() {
            let Some(volume) = slot else { continue };
            if self.random.chance(250_000) {
                // This replica does not answer any longer.
                *slot = None;
                continue;
            }
            let checkpoint = CheckpointName::new(&name).unwrap();
            let mut save = volume.begin(checkpoint, self.saves, Vec::new(), now_ms).unwrap();
            let entry = EntryName::new("entry").unwrap();
            let at = volume.add_entry(&mut save, entry, 5).unwrap();
            let writing = volume.write(&mut save, at, 0, b"bytes", now_ms).unwrap();
            let device = &mut self.devices[index];
            assert_eq!(device.drive(writing, b"bytes"), Ended::Well(Ok(())));
            let change = Change::new().commit(&save).generation(generation);
            let publishing = volume.publish(&change, now_ms).unwrap();
            assert_eq!(device.drive(publishing, &[]), Ended::Well(Ok(())));
        }
        let is_acknowledged = self.set.is_committed(volumes.iter().flatten().count());
        if is_acknowledged {
            self.acknowledged.insert(name);
            self.tally.acknowledged += 1;
        } else {
            self.tally.below_quorum += 1;
        }
        is_acknowledged
    }
}

/// Returns the names of the checkpoints of a volume.
fn names(volume: &Volume) -> BTreeSet<String> {
    let checkpoints = &volume.manifest().checkpoints;
    checkpoints.iter().map(|one| one.name.as_str().to_owned()).collect()
}

//! Random users of a volume, and the checker of the states that a reader may see.

use std::collections::BTreeMap;

use feedrail_checkpoint::{
    Change, CheckpointName, EntryName, Error, Formatting, LEASE_GRACE_MS, Lease,
    NamespaceAttributes, Opening, Reading, SUPERBLOCK_OFFSETS, Save, Volume,
};
use uuid::Uuid;

use super::device::{Ended, SimulatedDevice};
use super::model::{Contents, NameChange, Refusal};

pub(super) const UNIT_SHIFT: u32 = 12;
const UNITS: usize = 32 + 40;
pub(super) const LEASE_MS: u64 = 1_000_000;

/// Numbers of events in a world.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) commits: u64,
    pub(crate) power_cuts: u64,
    pub(crate) refusals: u64,
    pub(crate) fenced: u64,
    pub(crate) contested: u64,
    pub(crate) late: u64,
    pub(crate) files: u64,
    pub(crate) name_changes: u64,
}

pub(super) struct World {
    pub(super) device: SimulatedDevice,
    pub(super) now_ms: u64,
    /// Checkpoints that are committed.
    pub(super) contents: Contents,
    /// Checkpoints after a change whose commit was not acknowledged, because power was lost or the
    /// write of the superblock failed.
    perhaps: Option<Contents>,
    pub(super) names: u64,
    pub(super) tally: Tally,
    pub(super) has_compare: bool,
}

/// Formats a simulated device as an empty volume.
pub(crate) fn format(device: &mut SimulatedDevice, unit_shift: u32) {
    let facts = NamespaceAttributes { bytes: device.size(), has_compare: false };
    let formatting = Formatting::new(facts, Uuid::from_u128(7), unit_shift, false).unwrap();
    assert_eq!(device.drive(formatting, &[]), Ended::Well(Ok(())));
}

/// Opens the volume on a simulated device.
pub(crate) fn open(device: &mut SimulatedDevice, has_compare: bool) -> Result<Volume, Error> {
    let opening = Opening::new(NamespaceAttributes { bytes: device.size(), has_compare });
    match device.drive(opening, &[]) {
        Ended::Well(result) => result,
        Ended::PowerLost => panic!("power is lost while a volume is opened"),
    }
}

/// Runs the world of a seed. Panics if a rule is broken.
pub(crate) fn run_world(seed: u64) -> Tally {
    let mut device = SimulatedDevice::new(UNITS << UNIT_SHIFT, seed);
    format(&mut device, UNIT_SHIFT);
    let has_compare = device.random.chance(500_000);
    let (contents, perhaps) = (Contents::new(), None);
    let tally = Tally::default();
    let mut world = World { device, now_ms: 1, contents, perhaps, names: 0, tally, has_compare };
    for _ in 0..3 {
        world.session();
    }
    world.two_writers();
    world.end_leases();
    world.two_claims();
    world.end_leases();
    world.reader_beside_writer();
    world.end_leases();
    world.fill();
    world.rot_in_manifest();
    world.rot();
    world.tally
}

impl World {
    /// A writer opens the volume and changes it until power is lost or it ends.
    fn session(&mut self) {
        self.device.failures_per_million = 0;
        let mut volume = self.reopen();
        if self.claim(&mut volume) {
            let cut = self.device.random.chance(800_000);
            let within = self.device.random.below(120);
            self.device.power_cut_in = cut.then_some(within);
            self.device.failures_per_million = [0, 0, 20_000][self.device.random.index(3)];
            self.device.late_per_million = [0, 0, 200_000][self.device.random.index(3)];
            let changes = 2 + self.device.random.below(6);
            for _ in 0..changes {
                if !self.change(&mut volume) {
                    break;
                }
            }
        }
        self.device.power_cut_in = None;
        (self.device.failures_per_million, self.device.late_per_million) = (0, 0);
        self.end_leases();
    }

    /// Opens the volume, and checks that it has the old or the new checkpoints.
    pub(super) fn reopen(&mut self) -> Volume {
        let volume = open(&mut self.device, self.has_compare).expect("a volume opens");
        let seen = self.read_all(&volume).expect("what is committed can be read");
        let may_be_new = self.perhaps.take().filter(|new| *new == seen);
        let is_old = seen == self.contents;
        assert!(is_old || may_be_new.is_some(), "neither the old nor the new state is seen");
        self.contents = seen;
        self.check_space(&volume);
        volume
    }

    /// Waits until no lease of one or two writers is live.
    pub(super) fn end_leases(&mut self) {
        self.now_ms += 2 * (LEASE_MS + LEASE_GRACE_MS);
    }

    pub(super) fn claim(&mut self, volume: &mut Volume) -> bool {
        let number = 1 + self.device.random.below(u64::MAX - 1);
        let lease = Lease { host: Uuid::nil(), number, expiry_ms: self.now_ms + LEASE_MS };
        let publishing = volume.publish(&Change::new().lease(lease), self.now_ms).unwrap();
        self.device.drive(publishing, &[]) == Ended::Well(Ok(()))
    }

    /// Reads all entries, each in two ranges with a random border.
    fn read_all(&mut self, volume: &Volume) -> Result<Contents, Error> {
        let mut contents = Contents::new();
        for checkpoint in &volume.manifest().checkpoints {
            let mut entries = BTreeMap::new();
            for entry in &checkpoint.entries {
                let middle = self.device.random.below(entry.length + 1);
                let mut bytes = Vec::new();
                for range in [0..middle, middle..entry.length] {
                    let (name, entry) = (checkpoint.name.as_str(), entry.name.as_str());
                    let plan = volume.read_plan(name, entry, range)?;
                    match self.device.drive(Reading::new(plan), &[]) {
                        Ended::Well(part) => bytes.extend(part?),
                        Ended::PowerLost => panic!("power is lost in a read"),
                    }
                }
                entries.insert(entry.name.as_str().to_owned(), bytes);
            }
            contents.insert(checkpoint.name.as_str().to_owned(), entries);
        }
        Ok(contents)
    }

    /// Compares the free space with that of a reader who opens the volume now.
    pub(super) fn check_space(&mut self, volume: &Volume) {
        let power_cut_in = self.device.power_cut_in.take();
        let failures = std::mem::take(&mut self.device.failures_per_million);
        let fresh = open(&mut self.device, self.has_compare).expect("a volume opens");
        assert_eq!(volume.free_bytes(), fresh.free_bytes(), "space is leaked or used twice");
        self.device.power_cut_in = power_cut_in;
        self.device.failures_per_million = failures;
    }

    /// Makes one random change. Returns false if the session must end.
    fn change(&mut self, volume: &mut Volume) -> bool {
        match self.device.random.below(16) {
            0..6 => self.save(volume),
            6..8 => self.delete(volume),
            8..10 => self.keep(volume),
            10..13 => self.files(volume),
            _ => self.change_names(volume),
        }
    }

    pub(super) fn change_names(&mut self, volume: &mut Volume) -> bool {
        let names = NameChange::random(&mut self.device.random, &self.contents);
        let after = names.apply(&self.contents);
        let change = names.add_to(Change::new(), self.now_ms);
        match (change, after) {
            (Ok(change), Ok(after)) => {
                let is_made = self.publish(volume, &change, after);
                self.tally.name_changes += u64::from(is_made == Some(true));
                is_made.is_some()
            }
            (change, after) => {
                let refused: Result<(), Refusal> = change.and_then(|change| {
                    match volume.publish(&change, self.now_ms).map(drop) {
                        Err(Error::Missing(_)) => Err(Refusal::Missing),
                        Err(Error::Exists(_)) => Err(Refusal::Exists),
                        other => panic!("{names:?}: {other:?} instead of {after:?}"),
                    }
                });
                assert_eq!(refused, after.map(drop), "{names:?}");
                true
            }
        }
    }

    pub(super) fn save(&mut self, volume: &mut Volume) -> bool {
        self.names += 1;
        let name = format!("step-{}", self.names);
        let (save, entries) = match self.write_save(volume, &name) {
            Written::Whole(save, entries) => (save, entries),
            Written::Failed(save) => {
                volume.abort(save);
                self.tally.refusals += 1;
                self.check_space(volume);
                return true;
            }
            Written::PowerLost => return false,
        };
        if self.device.random.chance(150_000) {
            volume.abort(save);
            self.check_space(volume);
            return true;
        }
        let mut after = self.contents.clone();
        after.insert(name, entries);
        let mut change = Change::new().commit(&save);
        if self.device.random.chance(300_000) {
            let kept = 1 + self.device.random.index(3);
            change = change.keep(kept);
            let order = volume.manifest().checkpoints.iter().map(|one| one.name.as_str());
            let surplus = after.len().saturating_sub(kept);
            order.take(surplus).for_each(|name| drop(after.remove(name)));
        }
        match self.publish(volume, &change, after) {
            Some(true) => true,
            Some(false) => {
                volume.abort(save);
                self.check_space(volume);
                true
            }
            None => false,
        }
    }

    pub(super) fn write_save(&mut self, volume: &mut Volume, name: &str) -> Written {
        let name = CheckpointName::new(name).unwrap();
        let mut save = volume.begin(name, self.names, b"{}".to_vec(), self.now_ms).unwrap();
        let mut entries = BTreeMap::new();
        for number in 0..1 + self.device.random.below(3) {
            let name = format!("rank{number}/model");
            let length = self.device.random.index(5 << UNIT_SHIFT);
            let bytes: Vec<u8> = std::iter::repeat_with(|| self.device.random.next_u64() as u8)
                .take(length)
                .collect();
            let entry = EntryName::new(&name).unwrap();
            let Ok(index) = volume.add_entry(&mut save, entry, length as u64) else {
                return Written::Failed(save);
            };
            let writing = volume.write(&mut save, index, 0, &bytes, self.now_ms).unwrap();
            match self.device.drive(writing, &bytes) {
                Ended::Well(Ok(())) => {}
                Ended::Well(Err(_)) => return Written::Failed(save),
                Ended::PowerLost => return self.cut(),
            }
            entries.insert(name, bytes);
        }
        Written::Whole(save, entries)
    }

    fn cut(&mut self) -> Written {
        self.tally.power_cuts += 1;
        Written::PowerLost
    }

    pub(super) fn delete(&mut self, volume: &mut Volume) -> bool {
        let count = self.contents.len();
        let Some(name) = self.contents.keys().nth(self.device.random.index(count)) else {
            return true;
        };
        let name = name.clone();
        let mut after = self.contents.clone();
        after.remove(&name);
        self.publish(volume, &Change::new().delete(&name), after).is_some()
    }

    fn keep(&mut self, volume: &mut Volume) -> bool {
        let kept = self.device.random.index(3);
        let mut after = self.contents.clone();
        let order = volume.manifest().checkpoints.iter().map(|one| one.name.as_str());
        let surplus = after.len().saturating_sub(kept);
        order.take(surplus).for_each(|name| drop(after.remove(name)));
        self.publish(volume, &Change::new().keep(kept), after).is_some()
    }

    /// Commits a change. Returns whether that succeeded; `None` if the session must end.
    pub(super) fn publish(
        &mut self,
        volume: &mut Volume,
        change: &Change<'_>,
        after: Contents,
    ) -> Option<bool> {
        let publishing = match volume.publish(change, self.now_ms) {
            Ok(publishing) => publishing,
            Err(Error::CapacityExceeded { .. }) => {
                let has = |(checkpoint, entries): (&String, &BTreeMap<String, Vec<u8>>)| {
                    let before = self.contents.get(checkpoint);
                    before.is_some_and(|before| {
                        entries.iter().all(|(name, bytes)| before.get(name) == Some(bytes))
                    })
                };
                assert!(!after.iter().all(has), "a full volume refuses a deletion");
                self.tally.refusals += 1;
                return Some(false);
            }
            Err(error) => panic!("{error}"),
        };
        match self.device.drive(publishing, &[]) {
            Ended::Well(Ok(())) => {
                self.contents = after;
                self.tally.commits += 1;
                Some(true)
            }
            Ended::Well(Err(Error::Unknown(_))) => {
                self.perhaps = Some(after);
                None
            }
            Ended::Well(Err(Error::Device(_))) => Some(false),
            Ended::Well(Err(Error::NoLease)) => {
                self.tally.late += 1;
                Some(false)
            }
            Ended::Well(Err(error)) => panic!("{error}"),
            Ended::PowerLost => {
                self.tally.power_cuts += 1;
                self.perhaps = Some(after);
                None
            }
        }
    }

    /// Damages one bit of a copy of the manifest, or makes the copy unreadable. The other copy must
    /// lead a reader to all checkpoints, and the next change must write both copies again.
    fn rot_in_manifest(&mut self) {
        let superblock = *self.reopen().superblock();
        let copy = self.device.random.index(2);
        let offset = superblock.manifest_units[copy] * superblock.geometry.unit_bytes();
        if self.device.random.chance(500_000) {
            self.damage(offset, superblock.manifest_bytes);
        } else {
            self.device.unreadable = offset..offset + superblock.manifest_bytes;
        }
        let mut volume = self.reopen();
        assert!(!volume.is_fallen_back(), "a damaged copy of the manifest costs a commit");
        let damaged = [copy == 0, copy == 1];
        assert_eq!(self.check_manifest(&mut volume), damaged);
        assert!(self.claim(&mut volume));
        assert_eq!(volume.damaged_manifest_copies(), [false; 2]);
        let mut volume = self.reopen();
        assert_eq!(self.check_manifest(&mut volume), [false; 2], "a copy is still damaged");
        self.device.unreadable = 0..0;
    }

    fn check_manifest(&mut self, volume: &mut Volume) -> [bool; 2] {
        match self.device.drive(volume.check_manifest(), &[]) {
            Ended::Well(damaged) => damaged.expect("damage is no error"),
            Ended::PowerLost => panic!("power is lost in a check"),
        }
    }

    /// Flips one bit in a range of bytes.
    fn damage(&mut self, offset: u64, length: u64) {
        let at = (offset + self.device.random.below(length)) as usize;
        self.device.durable()[at] ^= 1 << self.device.random.below(8);
    }

    /// Damages one bit of data or of a superblock. A reader must never see wrong bytes.
    fn rot(&mut self) {
        let volume = self.reopen();
        let superblock = *volume.superblock();
        let unit = superblock.geometry.unit_bytes();
        let checkpoints = &volume.manifest().checkpoints;
        let used: Vec<_> = checkpoints.iter().flat_map(|one| &one.entries).collect();
        let in_superblock = SUPERBLOCK_OFFSETS[self.device.random.index(2)];
        let mut places = vec![(in_superblock, 4096)];
        places.extend(used.iter().filter_map(|entry| {
            let extent = entry.extents.first()?;
            Some((extent.first * unit, entry.length.min(unit)))
        }));
        let (offset, length) = places[self.device.random.index(places.len())];
        self.damage(offset, length);
        let opened = open(&mut self.device, self.has_compare);
        let is_superblock = offset == in_superblock;
        assert!(opened.is_ok() || !is_superblock, "one damaged superblock costs the volume");
        let seen = opened.and_then(|volume| {
            let seen = self.read_all(&volume)?;
            Ok((seen, volume.is_fallen_back()))
        });
        match seen {
            Ok((seen, false)) => assert_eq!(seen, self.contents, "damaged bytes are seen"),
            Ok((seen, true)) => {
                // An older state; checkpoints that are in both have the same bytes.
                let same = |(name, entries): (&String, &_)| {
                    self.contents.get(name).is_none_or(|now| now == entries)
                };
                assert!(seen.iter().all(same), "damaged bytes are seen");
            }
            Err(Error::Damaged { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) enum Written {
    Whole(Save, BTreeMap<String, Vec<u8>>),
    Failed(Save),
    PowerLost,
}

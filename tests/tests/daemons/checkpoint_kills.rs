//! Checkpoint volumes whose writers and targets are killed at random moments of saves. Afterwards
//! each volume has the old or the new checkpoints, whole, and the next writer can begin.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;
use std::os::unix::fs::FileExt as _;
use std::thread;
use std::time::Duration;

use feedrail_checkpoint::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};
use feedrail_checkpoint_store::{
    CheckpointStore, StoreOptions, VerifyReport, VolumeNamespace, VolumeSummary,
};
use feedrail_initiator::{Host, RdmaProvider};
use feedrail_tests::checkpoint_content::CheckpointContent;
use feedrail_tests::process::{Bytes, Outcome, Program, Running, eventually, host, pause};

use super::checkpoint_volume::{MIB, Volume};
use super::endurance::seed;

/// Kills in one run; more on demand.
const KILLS: u64 = 10;
const KILLS_VARIABLE: &str = "FEEDRAIL_CHECKPOINT_KILLS";
/// Volumes side by side, at most: the lease of a killed writer and the grace period of 30 s are
/// waited for on all of them together.
const VOLUMES_MOST: u64 = 20;
/// Length of leases in seconds. A writer with ranks that cannot run for half of it loses its save.
const LEASE: &str = "4";
/// Room for four checkpoints of four entries, and for manifests.
const VOLUME_BYTES: u64 = 64 * MIB;
/// The longest delay of a kill is this power of two, in milliseconds.
const DELAY_EXPONENT: u64 = 10;
/// A writer that has not ended by then hangs. It may wait for a lease.
const LIMIT: Duration = Duration::from_secs(300);

/// Processes that are killed in one save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Target,
    Writer,
    /// The target, and the one that was started after it.
    TargetTwice,
    Both,
}

/// The first of a pair leaves no lease that the second one waits for.
const VICTIMS: [Victim; 4] = [Victim::Target, Victim::Writer, Victim::TargetTwice, Victim::Both];

/// Knowledge of a save whose writer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Saved {
    Acknowledged,
    Refused,
    Unknown,
}

/// Events of a run.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    writer_kills: u64,
    target_kills: u64,
    acknowledged: u64,
    /// Saves that were not acknowledged, and are there.
    found: u64,
    /// Saves that were not acknowledged, and are not there.
    absent: u64,
    /// Saves whose writer acknowledged them although its target was killed.
    survived: u64,
}

impl AddAssign for Totals {
    fn add_assign(&mut self, other: Self) {
        self.writer_kills += other.writer_kills;
        self.target_kills += other.target_kills;
        self.acknowledged += other.acknowledged;
        self.found += other.found;
        self.absent += other.absent;
        self.survived += other.survived;
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} kills of writers, {} of targets; {} saves acknowledged ({} of them across kills of \
             the target), {} found and {} absent without",
            self.writer_kills,
            self.target_kills,
            self.acknowledged,
            self.survived,
            self.found,
            self.absent
        )
    }
}

/// A checkpoint that the volume has or may have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    name: String,
    seed: u64,
}

/// A volume under kills, and the checkpoints that are on it.
struct Trial {
    volume: Volume,
    random: Bytes,
    known: Vec<Known>,
    saves: u64,
    totals: Totals,
}

/// A save in progress.
struct Attempt {
    writer: Running,
    /// Checkpoints of the volume if it is committed.
    after: Vec<Known>,
}

impl Trial {
    fn new(index: u64, seed: u64) -> Self {
        let provider = ["soft", "shm"][(index / 2 % 2) as usize];
        let volume = Volume::formatted(VOLUME_BYTES, provider);
        let random = Bytes::new(seed ^ index.rotate_right(8));
        Self { volume, random, known: Vec::new(), saves: 0, totals: Totals::default() }
    }

    /// Starts the command line or a writer with ranks.
    fn begin(&mut self) -> Attempt {
        self.saves += 1;
        let one = Known { name: format!("step-{}", self.saves), seed: self.random.next_u64() };
        let keep = 1 + self.random.below(3) as usize;
        let mut after = self.known.clone();
        after.push(one.clone());
        after.drain(..after.len().saturating_sub(keep));
        let keep = keep.to_string();
        let program = if self.random.below(2) == 0 {
            let source = self.volume.path(&one.name);
            CheckpointContent::of(one.seed).write_to(&source).unwrap();
            let source = source.display().to_string();
            let options = ["--keep", &keep, "--lease", LEASE, "--wait", "250"];
            self.volume.command(&["put"], &[&[&*one.name, &source][..], &options].concat())
        } else {
            let program = Program::new(env!("CARGO_BIN_EXE_checkpoint-writer"));
            let seed = one.seed.to_string();
            let words = [self.volume.provider, &seed, LEASE, "save", &one.name, &keep];
            program.args([self.volume.url()]).args(words)
        };
        Attempt { writer: program.limit(LIMIT).start(), after }
    }

    /// Saves a checkpoint and kills nothing.
    fn save_undisturbed(&mut self) {
        let Attempt { writer, after } = self.begin();
        writer.wait().success();
        self.settle(Saved::Acknowledged, after);
    }

    /// Saves a checkpoint, and kills the writer or the target during it.
    fn save_under_kill(&mut self, victim: Victim) {
        let generation = self.generation();
        let Attempt { mut writer, after } = self.begin();
        // One in eight is killed before it has the lease, or while it waits for that of a writer.
        if self.random.below(8) > 0 {
            eventually("the writer has the lease", || {
                self.generation() > generation || writer.has_ended()
            });
        }
        delay(&mut self.random);
        let is_over = writer.has_ended();
        let kills_writer = matches!(victim, Victim::Writer | Victim::Both) && !is_over;
        let mut outcome = None;
        let mut writer = Some(writer);
        if kills_writer {
            writer.take().unwrap().kill();
            self.totals.writer_kills += 1;
        } else if is_over {
            outcome = writer.take().map(Running::wait);
        }
        if victim != Victim::Writer {
            self.kill_target();
        }
        if victim == Victim::TargetTwice {
            delay(&mut self.random);
            self.kill_target();
        }
        let outcome = outcome.or_else(|| writer.map(Running::wait));
        let saved = outcome.map_or(Saved::Unknown, |outcome| self.saved(&outcome));
        let is_across = !is_over && victim != Victim::Writer && saved == Saved::Acknowledged;
        self.totals.survived += u64::from(is_across);
        self.settle(saved, after);
    }

    fn kill_target(&mut self) {
        self.volume.restart();
        self.totals.target_kills += 1;
    }

    fn saved(&self, outcome: &Outcome) -> Saved {
        let status = outcome.status.unwrap_or_else(|| panic!("the writer hangs: {outcome}"));
        match status.code() {
            Some(0) => Saved::Acknowledged,
            Some(_) if outcome.stderr.contains("it is unknown whether") => Saved::Unknown,
            Some(_) => {
                println!("{}: {}", self.volume.url(), outcome.stderr.trim());
                Saved::Refused
            }
            None => panic!("a signal ended the writer: {outcome}"),
        }
    }

    /// Compares the volume with what it may be.
    #[track_caller]
    fn settle(&mut self, saved: Saved, after: Vec<Known>) {
        eventually("nobody is connected", || self.volume.daemon.stats()["connections"] == 0);
        let store = CheckpointStore::open(&self.connect(), StoreOptions::default()).unwrap();
        let names: Vec<_> = store.list().into_iter().map(|one| one.name).collect();
        let are = |all: &[Known]| all.iter().map(|one| &one.name).eq(&names);
        match saved {
            Saved::Acknowledged => {
                assert!(are(&after), "acknowledged: {after:?}, but found: {names:?}");
                self.totals.acknowledged += 1;
                self.known = after;
            }
            Saved::Unknown if are(&after) => {
                self.totals.found += 1;
                self.known = after;
            }
            Saved::Refused | Saved::Unknown => {
                assert!(are(&self.known), "{saved:?}: {:?}, but found: {names:?}", self.known);
                self.totals.absent += 1;
            }
        }
        self.known.iter().for_each(|one| check_content(&store, &one.name, one.seed));
        let report = store.verify(None, &mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        let VerifyReport { damaged, damaged_manifest_copies, .. } = report;
        assert!(damaged.is_empty() && damaged_manifest_copies == [false; 2], "{damaged:?}");
        self.check_space(&store);
    }

    /// Checks that each unit is free or in use by what can be seen.
    #[track_caller]
    fn check_space(&self, store: &CheckpointStore) {
        let summary = store.summary();
        let VolumeSummary { capacity_bytes, free_bytes, unit_bytes, .. } = summary;
        assert!(!summary.is_fallen_back, "a superblock is damaged");
        let entries = self.known.iter().flat_map(|one| CheckpointContent::of(one.seed).entries);
        let units: u64 = entries.map(|(_, bytes)| (bytes.len() as u64).div_ceil(unit_bytes)).sum();
        // Those of the older superblock stay, so that it can be read.
        let manifests: BTreeSet<_> = self
            .superblocks()
            .iter()
            .flat_map(|one| {
                let units = one.geometry.units_of(one.manifest_bytes);
                one.manifest_units.map(|first| first..first + units).into_iter().flatten()
            })
            .collect();
        let used = 1 + units + manifests.len() as u64;
        assert_eq!(used * unit_bytes + free_bytes, capacity_bytes, "used and free: {summary:?}");
    }

    fn connect(&self) -> VolumeNamespace {
        let provider = match self.volume.provider {
            "shm" => RdmaProvider::Shm,
            _ => RdmaProvider::Soft,
        };
        let host: Host = host().provider(provider).build().unwrap();
        VolumeNamespace::connect(&host, &self.volume.url().parse().unwrap()).unwrap()
    }

    fn superblocks(&self) -> Vec<Superblock> {
        let image = self.volume.image();
        let read = |offset| {
            let mut block = [0; SUPERBLOCK_BYTES];
            image.read_exact_at(&mut block, offset).unwrap();
            Superblock::decode(&block).ok()
        };
        SUPERBLOCK_OFFSETS.into_iter().filter_map(read).collect()
    }

    fn generation(&self) -> u64 {
        self.superblocks().iter().map(|one| one.generation).max().unwrap_or(0)
    }

    /// Checks that nothing is left when all checkpoints are deleted.
    fn empty(&mut self) {
        let store = CheckpointStore::open_writer(&self.connect(), StoreOptions::default()).unwrap();
        store.keep(0).unwrap();
        self.known.clear();
        self.check_space(&store);
        store.close().unwrap();
    }
}

/// Waits for 1 ms to a second: short times are as frequent as long ones.
pub(crate) fn delay(random: &mut Bytes) {
    let most = 1 << random.below(DELAY_EXPONENT + 1);
    pause(Duration::from_millis(random.below(most + 1)));
}

/// Compares all entries of a checkpoint with those that belong to the seed.
#[track_caller]
pub(crate) fn check_content(store: &CheckpointStore, name: &str, seed: u64) {
    let content = CheckpointContent::of(seed).entries;
    let entries = store.entries(name).unwrap();
    assert_eq!(entries.len(), content.len(), "{name}");
    for (entry, bytes) in content {
        let mut found = vec![0; bytes.len()];
        store.read(name, &entry, 0..bytes.len() as u64, &mut found).unwrap();
        assert!(found == bytes, "{entry} of {name} has other bytes");
    }
}

/// Returns the number of kills that a variable of the environment asks for.
pub(crate) fn kills(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number of kills"))
}

fn run(index: u64, seed: u64, kills: u64) -> Totals {
    let mut trial = Trial::new(index, seed);
    trial.save_undisturbed();
    // Volumes side by side begin with different victims.
    for round in index % 2 * 2.. {
        if trial.totals.writer_kills + trial.totals.target_kills >= kills {
            break;
        }
        trial.save_under_kill(VICTIMS[(round % 4) as usize]);
    }
    trial.save_undisturbed();
    trial.empty();
    trial.totals
}

#[test]
fn checkpoints_are_whole_or_not_there_after_kills() {
    let seed = seed();
    let kills = kills(KILLS_VARIABLE, KILLS);
    let volumes = (kills / 2).clamp(1, VOLUMES_MOST);
    let totals = thread::scope(|scope| {
        let begin = |index| scope.spawn(move || run(index, seed, kills.div_ceil(volumes)));
        let threads: Vec<_> = (0..volumes).map(begin).collect();
        let mut totals = Totals::default();
        for (index, thread) in threads.into_iter().enumerate() {
            totals += thread.join().unwrap_or_else(|_| panic!("volume {index} of seed {seed}"));
        }
        totals
    });
    println!("seed {seed}: {totals}");
}

//! Files in checkpoints: several together, replaced, renamed and removed.

use std::fs;
use std::ops::ControlFlow;

use feedrail_checkpoint_store::{
    CheckpointStore, FormatOptions, RepairScope, ReplicaFile, ReplicaPlace, ReplicaState,
    ReplicatedStore, StoreError, StoreOptions, VolumeNamespace,
};
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, Program, feedrail, host};
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// Daemons with a writable file each, formatted as replicas of one volume.
struct Volumes {
    _folder: TempDir,
    daemons: Vec<Daemon>,
}

impl Volumes {
    fn formatted(count: usize) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let start = |index| {
            let path = folder.path().join(format!("volume-{index}.img"));
            fs::File::create(&path).unwrap().set_len(48 << 20).unwrap();
            DaemonOptions::files([path]).arg("--writable").start()
        };
        let volumes = Self { daemons: (0..count).map(start).collect(), _folder: folder };
        let options = FormatOptions { unit_shift: 16, ..FormatOptions::default() };
        ReplicatedStore::format(&volumes.places(), &options).unwrap();
        volumes
    }

    fn url(&self, index: usize) -> String {
        format!("nvmf://{}/{}", self.daemons[index].address(), self.daemons[index].nqn())
    }

    fn place(&self, index: usize) -> ReplicaPlace {
        let host = host().build().unwrap();
        VolumeNamespace::connect(&host, &self.url(index).parse().unwrap())
    }

    fn places(&self) -> Vec<ReplicaPlace> {
        (0..self.daemons.len()).map(|index| self.place(index)).collect()
    }

    fn writer(&self) -> ReplicatedStore {
        let quorum = self.daemons.len() / 2 + 1;
        ReplicatedStore::open_writer(self.places(), quorum, options()).unwrap()
    }

    /// `feedrail checkpoint`, the word, the URL of the first volume and the other arguments.
    fn command(&self, word: &str, arguments: &[&str]) -> Program {
        feedrail(["checkpoint", word]).args([self.url(0)]).args(arguments)
    }
}

/// Memory of 16 units.
fn options() -> StoreOptions {
    StoreOptions { staging_bytes: MIB, ..StoreOptions::default() }
}

fn put(store: &mut ReplicatedStore, place: (&str, &str), bytes: &[u8]) -> Result<(), StoreError> {
    let mut file = store.begin_file(place.0, place.1)?;
    file.append(store, bytes)?;
    file.commit(store)
}

fn read(store: &ReplicatedStore, (checkpoint, entry): (&str, &str)) -> Vec<u8> {
    let entries = store.entries(checkpoint).unwrap();
    let length = entries.iter().find(|one| one.name == entry).unwrap().length;
    let mut bytes = vec![0; length as usize];
    let copy = &mut |offset, part: &[u8]| {
        bytes[offset as usize..][..part.len()].copy_from_slice(part);
        ControlFlow::Continue(())
    };
    store.read_with(checkpoint, entry, 0..length, copy).unwrap();
    bytes
}

fn names(store: &ReplicatedStore, checkpoint: &str) -> Vec<String> {
    store.entries(checkpoint).unwrap().into_iter().map(|one| one.name).collect()
}

#[test]
fn files_grow_side_by_side_beside_a_save() {
    let volumes = Volumes::formatted(1);
    let mut store = volumes.writer();
    let contents: Vec<_> = (0..4).map(|seed| Bytes::new(80 + seed).take(2 * MIB + 77)).collect();
    let mut saves = store.begin_saves("save", 7, b"{}").unwrap();
    let of_save = saves.add(&mut store, "weights", 3 << 16).unwrap();
    let begin = |number: usize| format!("part-{number}");
    let mut files: Vec<ReplicaFile> =
        (0..4).map(|number| store.begin_file("step-1200", &begin(number)).unwrap()).collect();
    for at in (0..2 * MIB + 77).step_by(30_011) {
        for (file, bytes) in files.iter_mut().zip(&contents) {
            file.append(&mut store, &bytes[at..bytes.len().min(at + 30_011)]).unwrap();
        }
    }
    saves.write_at(&mut store, of_save, 0, &[5; 3 << 16]).unwrap();
    assert_eq!(store.list().unwrap(), []);

    // Each is there when it is committed, and not earlier.
    let dropped = files.pop().unwrap();
    for (number, file) in files.into_iter().enumerate() {
        assert_eq!(file.length(), contents[number].len() as u64);
        file.commit(&mut store).unwrap();
        assert_eq!(names(&store, "step-1200").len(), number + 1);
    }
    drop(dropped);
    saves.commit(&mut store).unwrap();
    let listed = store.list().unwrap();
    let steps: Vec<_> = listed.iter().map(|one| (one.name.as_str(), one.step)).collect();
    assert_eq!(steps, [("step-1200", 1200), ("save", 7)]);
    for (number, bytes) in contents[..3].iter().enumerate() {
        assert!(read(&store, ("step-1200", &begin(number))) == *bytes, "file {number} differs");
    }
    assert_eq!(read(&store, ("save", "weights")), [5; 3 << 16]);
    store.close().unwrap();
    volumes.command("verify", &[]).run().success();
}

#[test]
fn a_replaced_file_and_a_full_volume_leave_no_space_behind() {
    let volumes = Volumes::formatted(1);
    let mut store = volumes.writer();
    put(&mut store, ("a", "file"), &[1; 3 * MIB]).unwrap();
    let free = |store: &ReplicatedStore| store.newest().unwrap().summary().free_bytes;
    let before = free(&store);
    put(&mut store, ("a", "file"), &[2; 3 * MIB]).unwrap();
    assert_eq!(free(&store), before);
    assert_eq!(read(&store, ("a", "file")), [2; 3 * MIB]);

    let mut large = store.begin_file("a", "large").unwrap();
    let refused = (0..64).find_map(|_| large.append(&mut store, &[3; MIB]).err()).unwrap();
    assert!(refused.to_string().contains("bytes are needed"), "{refused}");
    // Deleting is possible while it has all space.
    put(&mut store, ("a", "none"), b"").unwrap();
    store.remove("a", Some("none")).unwrap();
    drop(large);
    assert_eq!(free(&store), before);
    assert_eq!(names(&store, "a"), ["file"]);
    // A folder and a file of one name would be no file system.
    let refused = put(&mut store, ("a", "file/below"), b"x").unwrap_err();
    assert!(refused.to_string().contains("already"), "{refused}");
    assert_eq!(free(&store), before);
}

#[test]
fn names_change_by_one_commit() {
    let volumes = Volumes::formatted(1);
    let mut store = volumes.writer();
    for name in ["config.json", "rank0/model", "rank0/optimizer", "rank1/model"] {
        put(&mut store, ("tmp-12", name), name.as_bytes()).unwrap();
    }
    store.rename(("tmp-12", None), ("step-12", None), false).unwrap();
    store.rename(("step-12", Some("rank0/")), ("step-12", Some("ranks/0/")), false).unwrap();
    let names_now = ["config.json", "rank1/model", "ranks/0/model", "ranks/0/optimizer"];
    assert_eq!(names(&store, "step-12"), names_now);
    assert_eq!(read(&store, ("step-12", "ranks/0/model")), b"rank0/model");

    // Into another checkpoint, which exists or does not.
    let (from, to) = (("step-12", Some("config.json")), ("step-13", Some("config.json")));
    store.rename(from, to, false).unwrap();
    put(&mut store, ("step-12", "config.json"), b"newer").unwrap();
    let refused = store.rename(from, to, false).unwrap_err();
    assert!(refused.to_string().contains("already"), "{refused}");
    store.rename(from, to, true).unwrap();
    assert_eq!(read(&store, ("step-13", "config.json")), b"newer");
    assert_eq!(store.list().unwrap()[1].step, 13);
    for (from, to) in [(("none", None), ("other", None)), (("step-12", None), ("step-13", None))] {
        store.rename(from, to, true).unwrap_err();
    }
    store.rename(("step-12", Some("rank1/")), ("step-12", Some("rank1")), true).unwrap_err();
    store.remove("step-13", Some("config.json")).unwrap();
    assert_eq!(store.list().unwrap().len(), 1);
    store.remove("step-12", Some("none/")).unwrap_err();
    store.close().unwrap();

    let mv = ["step-12", "step-14", "--entry", "ranks/", "--to-entry", "old/"];
    volumes.command("mv", &mv).run().success();
    let line = volumes.command("mv", &["step-12", "step-14"]).run().failure();
    assert!(line.contains("already"), "{line}");
    volumes.command("mv", &["step-12", "moved"]).run().success();
    volumes.command("rm", &["step-14", "old/0/", "--dry-run"]).run().success();
    volumes.command("rm", &["step-14", "old/0/optimizer"]).run().success();
    let line = volumes.command("rm", &["step-14", "old/1/"]).run().failure();
    assert!(line.contains("no entry \"old/1/\""), "{line}");
    let store = CheckpointStore::open(&volumes.place(0).unwrap(), options()).unwrap();
    let listed: Vec<_> = store.list().into_iter().map(|one| (one.name, one.entries)).collect();
    assert_eq!(listed, [("moved".to_owned(), 1), ("step-14".to_owned(), 1)]);
}

#[test]
fn repair_copies_a_checkpoint_whose_entries_differ() {
    let volumes = Volumes::formatted(3);
    let mut store = volumes.writer();
    put(&mut store, ("step-1", "a"), b"first").unwrap();
    // A refusal of all replicas leaves them as they are.
    store.begin_saves("step-1", 1, b"").unwrap_err();
    store.rename(("step-1", Some("a")), ("step-1", None), false).unwrap_err();
    store.remove("none", None).unwrap_err();
    let is_current = |one: &ReplicaState| matches!(one, ReplicaState::Current);
    assert!(store.replicas().iter().all(is_current), "{store:?}");
    store.close().unwrap();

    // The third one does not answer.
    let mut places = volumes.places();
    places[2] = Err(StoreError::NotWritten);
    let mut store = ReplicatedStore::open_writer(places, 2, options()).unwrap();
    put(&mut store, ("step-1", "a"), &Bytes::new(90).take(MIB)).unwrap();
    put(&mut store, ("step-1", "b"), b"second").unwrap();
    store.rename(("step-1", Some("b")), ("step-1", Some("c")), false).unwrap();
    store.close().unwrap();

    let mut store = ReplicatedStore::open_repair(volumes.places(), 2, options()).unwrap();
    let reports = store.repair(RepairScope::AllUnits, &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!((reports[0].replica, &reports[0].copied[..]), (2, &["step-1".to_owned()][..]));
    put(&mut store, ("step-1", "d"), b"third").unwrap();
    store.close().unwrap();
    let mut places = volumes.places();
    places[0] = Err(StoreError::NotWritten);
    let store = ReplicatedStore::open(places, 2, options()).unwrap();
    assert!(store.replicas()[1..].iter().all(is_current), "{store:?}");
    let alone = ReplicatedStore::open(vec![volumes.place(2)], 1, options()).unwrap();
    assert_eq!(names(&alone, "step-1"), ["a", "c", "d"]);
    assert!(read(&alone, ("step-1", "a")) == Bytes::new(90).take(MIB));
}

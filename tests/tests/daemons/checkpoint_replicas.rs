//! Replicas of a checkpoint volume on three daemons with a quorum of two.

use std::fs;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::thread;

use feedrail_checkpoint_store::{CheckpointStore, StoreOptions, VolumeNamespace};
use feedrail_tests::checkpoint_content::CheckpointContent;
use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, Program, eventually, feedrail, host};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use super::checkpoint_kills::{check_content, delay, kills};
use super::endurance::seed;

/// Kills of a replica in a save; more on demand.
const KILLS: u64 = 2;
const KILLS_VARIABLE: &str = "FEEDRAIL_REPLICA_KILLS";
/// Volumes side by side, at most.
const VOLUMES_MOST: u64 = 6;

struct Replicas {
    folder: TempDir,
    daemons: Vec<Option<Daemon>>,
    addresses: Vec<SocketAddr>,
    nqns: Vec<String>,
}

impl Replicas {
    fn formatted() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut replicas =
            Self { folder, daemons: Vec::new(), addresses: Vec::new(), nqns: Vec::new() };
        for index in 0..3 {
            let path = replicas.image(index);
            fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
            let daemon = replicas.options(index).start();
            replicas.addresses.push(daemon.address());
            replicas.nqns.push(daemon.nqn().to_owned());
            replicas.daemons.push(Some(daemon));
        }
        replicas.command(&["format"], &[]).run().success();
        replicas
    }

    fn image(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("replica-{index}.img"))
    }

    fn options(&self, index: usize) -> DaemonOptions {
        DaemonOptions::files([self.image(index)]).arg("--writable")
    }

    fn kill(&mut self, index: usize) {
        self.daemons[index].take().unwrap().kill();
    }

    fn start(&mut self, index: usize) {
        let options = self.options(index).at(self.addresses[index]);
        self.daemons[index] = Some(options.start());
    }

    fn url(&self, index: usize) -> String {
        format!("nvmf://{}/{}", self.addresses[index], self.nqns[index])
    }

    fn command(&self, words: &[&str], arguments: &[&str]) -> Program {
        let urls = [self.url(0), "--replica".into(), self.url(1), "--replica".into(), self.url(2)];
        feedrail(["checkpoint"]).args(words).args(urls).args(arguments).args([
            "--write-quorum",
            "2",
            "--timeout",
            "2000",
            "--provider",
            "soft",
        ])
    }

    fn names(&self) -> Vec<String> {
        let list = self.command(&["list"], &["-o", "json"]).run().success();
        let list: Value = serde_json::from_slice(&list).unwrap();
        let names = list["checkpoints"].as_array().unwrap().iter();
        names.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    fn source(&self, name: &str, length: usize) -> String {
        let folder = self.folder.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("model.bin"), Bytes::new(length as u64).take(length)).unwrap();
        folder.display().to_string()
    }

    #[track_caller]
    fn check(&self, name: &str, source: &str) {
        let copy = tempfile::tempdir_in(self.folder.path()).unwrap();
        let to = copy.path().display().to_string();
        self.command(&["get"], &[name, &to]).run().success();
        let [read, written] =
            [&to, source].map(|one| fs::read(format!("{one}/model.bin")).unwrap());
        assert!(read == written, "{name} differs");
    }
}

#[test]
fn a_commit_needs_two_of_three_and_repair_makes_the_third_equal() {
    let mut replicas = Replicas::formatted();
    let first = replicas.source("first", 3_000_000);
    replicas.command(&["put"], &["first", &first]).run().success();

    // One is killed in the middle of a save.
    let second = replicas.source("second", 80 << 20);
    let daemon = replicas.daemons[2].as_ref().unwrap();
    let writes = || daemon.stats()["io"]["writes"].as_u64().unwrap();
    let before = writes();
    let put = replicas.command(&["put"], &["second", &second, "--lease", "20"]).start();
    eventually("it writes", || writes() > before + 8);
    replicas.kill(2);
    put.wait().success();
    assert_eq!(replicas.names(), ["first", "second"]);
    replicas.check("second", &second);

    // Alone it is never the newest.
    replicas.start(2);
    replicas.kill(0);
    replicas.kill(1);
    let line = replicas.command(&["list"], &[]).run().failure();
    assert!(line.contains("1 replicas answer, and 2 are needed"), "{line}");
    replicas.start(0);
    assert_eq!(replicas.names(), ["first", "second"]);

    // The killed one may have the lease of the save that it missed.
    replicas.start(1);
    replicas.command(&["repair"], &["--dry-run"]).run().success();
    let writes = || replicas.daemons[2].as_ref().unwrap().stats()["io"]["writes"].as_u64().unwrap();
    let before = writes();
    let mut repair = replicas.command(&["repair"], &["--wait", "110"]).start();
    eventually("it copies", || writes() > before + 8 || repair.has_ended());
    repair.signal(Signal::INT);
    let interrupted = repair.wait();
    assert_eq!(interrupted.status.and_then(|status| status.code()), Some(130), "{interrupted}");
    // Nothing that it copied is there, and it has given the leases back.
    let repair = replicas.command(&["repair"], &["-o", "json"]).run().success();
    let repair: Value = serde_json::from_slice(&repair).unwrap();
    assert_eq!(repair["repaired"][0]["copied"], serde_json::json!(["second"]));
    replicas.kill(0);
    assert_eq!(replicas.names(), ["first", "second"]);
    replicas.kill(1);
    let alone = feedrail(["checkpoint", "verify", &replicas.url(2), "--provider", "soft"]);
    alone.run().success();
    replicas.start(1);
    replicas.check("first", &first);
    replicas.check("second", &second);
}

/// Flips bits of bytes that are in the image of a replica, which the offsets in it name.
fn damage(replicas: &Replicas, index: usize, bytes: &[u8], offsets: &[usize]) {
    let image = fs::read(replicas.image(index)).unwrap();
    let file = fs::File::options().write(true).open(replicas.image(index)).unwrap();
    for offset in offsets {
        let wanted = &bytes[*offset..offset + 64];
        let place = image.windows(64).position(|window| window == wanted).unwrap();
        file.write_all_at(&[image[place] ^ 1], place as u64).unwrap();
    }
}

#[test]
fn damaged_units_are_read_from_another_replica_and_rewritten() {
    let replicas = Replicas::formatted();
    let source = replicas.source("source", (9 << 20) + 77);
    replicas.command(&["put"], &["one", &source]).run().success();
    let bytes = fs::read(format!("{source}/model.bin")).unwrap();
    // The short last unit too, and no unit on two replicas.
    damage(&replicas, 0, &bytes, &[5, (3 << 20) + 4096, 9 << 20]);
    damage(&replicas, 1, &bytes, &[2 << 20]);
    replicas.check("one", &source);
    let verify = replicas.command(&["verify"], &[]).run();
    let address = replicas.addresses[0].ip().to_string();
    assert!(String::from_utf8_lossy(&verify.stdout).contains(&address), "{verify}");
    assert!(verify.status.is_some_and(|status| !status.success()));

    let missed = replicas.command(&["repair"], &["--missed-only"]).run().success();
    assert_eq!(String::from_utf8_lossy(&missed), "nothing to repair\n");
    let repair = replicas.command(&["repair"], &["-o", "json"]).run().success();
    let repair: Value = serde_json::from_slice(&repair).unwrap();
    let rewritten = |index: usize| &repair["repaired"][index]["rewritten"];
    assert_eq!((rewritten(0), rewritten(1)), (&3.into(), &1.into()), "{repair}");
    assert_eq!(repair["repaired"].as_array().unwrap().len(), 2);
    replicas.command(&["verify"], &[]).run().success();

    // One unit is damaged on all of them, and a second one on two.
    for index in 0..3 {
        damage(&replicas, index, &bytes, &[5 << 20]);
    }
    damage(&replicas, 0, &bytes, &[7 << 20]);
    damage(&replicas, 2, &bytes, &[7 << 20]);
    let line = replicas.command(&["repair"], &[]).run().failure();
    assert!(line.contains("3 units are damaged"), "{line}");
    let verify = replicas.command(&["verify"], &["-o", "json"]).run();
    let verify: Value = serde_json::from_slice(&verify.stdout).unwrap();
    let offsets = verify["damaged"].as_array().unwrap().iter().map(|one| &one["offset"]);
    assert_eq!(offsets.collect::<Vec<_>>(), [5 << 20; 3]);
}

/// Kills a replica in a save, and repairs it.
fn save_under_kill(replicas: &mut Replicas, random: &mut Bytes, known: &mut Vec<(String, u64)>) {
    let (name, seed) = (format!("step-{}", known.len()), random.next_u64());
    let source = replicas.folder.path().join(&name);
    CheckpointContent::of(seed).write_to(&source).unwrap();
    let victim = random.below(3) as usize;
    let daemon = replicas.daemons[victim].as_ref().unwrap();
    let writes = || daemon.stats()["io"]["writes"].as_u64().unwrap();
    let before = writes();
    let source = source.display().to_string();
    let mut put = replicas.command(&["put"], &[&name, &source, "--lease", "10"]).start();
    eventually("it has the lease", || writes() > before || put.has_ended());
    delay(random);
    replicas.kill(victim);
    put.wait().success();
    known.push((name, seed));

    // Whether it has the commit or not, it cannot know the newest one alone.
    replicas.start(victim);
    let others = [(victim + 1) % 3, (victim + 2) % 3];
    others.into_iter().for_each(|other| replicas.kill(other));
    for words in [&["list"][..], &["show", "step-0"], &["verify"]] {
        let line = replicas.command(&words[..1], &words[1..]).run().failure();
        assert!(line.contains("1 replicas answer, and 2 are needed"), "{line}");
    }
    others.into_iter().for_each(|other| replicas.start(other));
    replicas.command(&["repair"], &["--wait", "110"]).run().success();
    check_equal(replicas, known);
}

/// Opens each replica alone, and compares all of it.
#[track_caller]
fn check_equal(replicas: &Replicas, known: &[(String, u64)]) {
    let host = host().build().unwrap();
    let stores = [0, 1, 2].map(|index| {
        let place = VolumeNamespace::connect(&host, &replicas.url(index).parse().unwrap()).unwrap();
        CheckpointStore::open(&place, StoreOptions::default()).unwrap()
    });
    for store in &stores {
        assert_eq!(store.list(), stores[0].list());
        assert!(store.list().iter().map(|one| &one.name).eq(known.iter().map(|(name, _)| name)));
        let report = store.verify(None, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(report.damaged.is_empty(), "{:?}", report.damaged);
        for (name, seed) in known {
            assert_eq!(store.entries(name).unwrap(), stores[0].entries(name).unwrap());
            check_content(store, name, *seed);
        }
    }
}

#[test]
fn replicas_are_equal_after_kills_and_repairs() {
    let seed = seed();
    let kills = kills(KILLS_VARIABLE, KILLS);
    let volumes = kills.clamp(1, VOLUMES_MOST);
    let run = |index: u64| {
        let mut replicas = Replicas::formatted();
        let mut random = Bytes::new(seed ^ index.rotate_right(8));
        let mut known = Vec::new();
        for _ in 0..kills.div_ceil(volumes) {
            save_under_kill(&mut replicas, &mut random, &mut known);
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..volumes).map(|index| scope.spawn(move || run(index))).collect();
        for (index, thread) in threads.into_iter().enumerate() {
            thread.join().unwrap_or_else(|_| panic!("volume {index} of seed {seed}"));
        }
    });
}

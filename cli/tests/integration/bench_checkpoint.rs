//! `feedrail bench-checkpoint` against a daemon in another process, and with a target of its own.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use feedrail_tests::process::{
    Daemon, DaemonOptions, Outcome, Program, Running, eventually, feedrail,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use splitmix64::{SplitMix64, mix};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;
/// 105 GB divided by this, on three ranks, are no multiple of a block.
const SMALL: [&str; 4] = ["--scale", "20000", "--ranks", "3"];
const SMALL_RANK_BYTES: u64 = 105_000_000_000 / 20_000 / 3;

/// A volume at a daemon, and a folder for files beside it.
struct Served {
    folder: TempDir,
    daemon: Daemon,
    metrics: String,
    provider: &'static str,
}

impl Served {
    fn unformatted(provider: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = fs::File::create(folder.path().join("volume.img")).unwrap();
        image.set_len(128 * MIB).unwrap();
        fs::create_dir(folder.path().join("beside")).unwrap();
        // The port is free again; another process may take it first, and then the daemon says so.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let metrics = format!("127.0.0.1:{port}");
        let options = DaemonOptions::files([folder.path().join("volume.img")]).arg("--writable");
        let options = options.arg("--provider").arg(provider).arg("--metrics").arg(&metrics);
        Self { daemon: options.start(), folder, metrics, provider }
    }

    fn new(provider: &'static str) -> Self {
        let served = Self::unformatted(provider);
        served.checkpoint("format").run().success();
        served
    }

    fn url(&self) -> String {
        format!("nvmf://{}/{}", self.daemon.address(), self.daemon.nqn())
    }

    fn checkpoint(&self, word: &str) -> Program {
        feedrail(["checkpoint", word, &self.url(), "--provider", self.provider])
    }

    /// The command with files beside the volume, whose results are JSON.
    fn bench(&self, options: &[&str]) -> Program {
        let program = feedrail(["bench-checkpoint", &self.url(), "--provider", self.provider]);
        program.args(["--beside"]).args([self.beside()]).args(["-o", "json"]).args(options)
    }

    fn beside(&self) -> PathBuf {
        self.folder.path().join("beside")
    }

    fn list(&self) -> Value {
        let text = self.checkpoint("list").args(["-o", "json"]).run().success();
        serde_json::from_slice(&text).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let list = self.list();
        let names = list["checkpoints"].as_array().unwrap().iter();
        names.map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Nothing of a run is on the volume or beside it, and the lease is given back.
    #[track_caller]
    fn is_as_before(&self) {
        let list = self.list();
        assert_eq!(list["checkpoints"].as_array().map(Vec::len), Some(0), "{list}");
        assert_eq!(list["volume"]["lease"], Value::Null, "{list}");
        assert_eq!(fs::read_dir(self.beside()).unwrap().count(), 0);
    }
}

fn json(outcome: Outcome) -> Value {
    serde_json::from_slice(&outcome.success()).unwrap()
}

#[track_caller]
fn writer<'a>(report: &'a Value, name: &str) -> &'a Value {
    let results = report["results"].as_array().unwrap();
    let found = results.iter().find(|one| one["writer"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {report}"))
}

/// The figures of a writer's saves or loads are there, for so many of them.
#[track_caller]
fn is_measured(figures: &Value, count: usize) {
    assert_eq!(figures["seconds"].as_array().map(Vec::len), Some(count), "{figures}");
    let rate = |name: &str| figures["gb_per_second"][name].as_f64().unwrap();
    assert!(rate("min") > 0.0 && rate("min") <= rate("median") && rate("median") <= rate("max"));
    let seconds = |name: &str| figures[name]["seconds"].as_f64().unwrap();
    assert!(seconds("fastest_rank") <= seconds("slowest_rank"), "{figures}");
    assert!(figures["slowest_rank"]["rank"].as_u64().is_some_and(|rank| rank < 3), "{figures}");
}

fn saves_and_loads_over(provider: &'static str) {
    let served = Served::new(provider);
    let metrics = format!("http://{}/metrics", served.metrics);
    let options = ["--saves", "2", "--loads", "2", "--metrics", &metrics, "--randseed", "5"];
    let report = json(served.bench(&SMALL).args(options).run());
    assert_eq!((&report["bytes"], &report["randseed"]), (&5_250_000.into(), &5.into()));
    assert!(report["provider"].as_str().unwrap().starts_with(provider), "{report}");
    for name in ["feedrail", "files"] {
        is_measured(&writer(&report, name)["write"], 2);
        is_measured(&writer(&report, name)["load"], 2);
    }
    for ratios in ["write_by", "load_by"] {
        assert!(report[ratios]["files"].as_f64().is_some_and(|ratio| ratio > 0.0), "{report}");
    }
    let cold = &report["cold"];
    assert_eq!((&cold["client_cold"], &cold["counted_by"]), (&true.into(), &"target".into()));
    for counted in ["target_read_bytes", "received_bytes"] {
        assert!(cold[counted].as_u64().is_some_and(|bytes| bytes >= 5_250_000), "{report}");
    }
    assert_eq!(cold["target_cache_cold"], Value::Null, "nothing was dropped: {report}");
    served.is_as_before();
}

#[test]
fn checkpoints_are_measured_over_soft() {
    saves_and_loads_over("soft");
}

#[test]
fn checkpoints_are_measured_over_shm() {
    saves_and_loads_over("shm");
}

#[test]
fn a_target_of_its_own_is_removed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let place = folder.path().to_str().unwrap();
    let options = ["--local", place, "--beside", place, "--drop-caches", "--saves", "1"];
    let program = feedrail(["bench-checkpoint"]).args(SMALL).args(options).args(["--loads", "1"]);
    let text = String::from_utf8(program.run().success()).unwrap();
    assert!(text.starts_with("llama3-8b/20000: 5250000 bytes on 3 ranks"), "{text}");
    assert!(text.contains("clients cold") && text.contains("dropped before each load"), "{text}");
    assert!(text.contains("not comparable"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

    let kept = feedrail(["bench-checkpoint", "--local", place, "--keep-data", "--loads", "0"]);
    let outcome = kept.args(SMALL).args(["--saves", "1"]).run();
    assert!(outcome.stderr.contains("volume.img"), "{outcome}");
    outcome.success();
    let images = fs::read_dir(folder.path()).unwrap();
    let image = images.map(|entry| entry.unwrap().path().join("volume.img")).next().unwrap();
    assert!(image.metadata().unwrap().len() > 3 * SMALL_RANK_BYTES);
}

/// Starts what does not end by itself, and waits until a checkpoint was saved.
fn endless(served: &Served, options: &[&str]) -> Running {
    let running = served.bench(&SMALL).args(options).start();
    eventually("it saves", || !served.names().is_empty());
    running
}

const ENDLESS_SAVES: [&str; 2] = ["--saves", "1000000"];
const ENDLESS_LOADS: [&str; 6] = ["--saves", "1", "--loads", "1000000", "--randseed", "9"];

/// Process ids of a run's ranks.
fn ranks(running: &Running) -> Vec<Pid> {
    let path = format!("/proc/{0}/task/{0}/children", running.id());
    let children = fs::read_to_string(path).unwrap_or_default();
    let is_rank = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == b"checkpoint-rank")
    };
    let pids = children.split_whitespace().filter(is_rank);
    pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

#[test]
fn a_killed_rank_is_named_and_nothing_remains() {
    let served = Served::new("shm");
    let running = endless(&served, &ENDLESS_SAVES);
    let ranks = ranks(&running);
    assert_eq!(ranks.len(), 3);
    kill_process(ranks[1], Signal::KILL).unwrap();
    let outcome = running.wait();
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert!(!writer(&report, "feedrail")["write"]["seconds"].as_array().unwrap().is_empty());
    let line = outcome.failure();
    assert!(line.contains("rank 1 ended (signal: 9 (SIGKILL))"), "{line}");
    served.is_as_before();
    // The lease was given back: the next run need not wait.
    served.bench(&SMALL).args(["--saves", "1", "--loads", "0"]).run().success();
}

#[test]
fn an_interrupt_ends_the_ranks_and_removes_what_was_saved() {
    let served = Served::new("soft");
    let running = endless(&served, &ENDLESS_SAVES);
    let ranks = ranks(&running);
    kill_process(Pid::from_raw(running.id().cast_signed()).unwrap(), Signal::INT).unwrap();
    let outcome = running.wait();
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(130), "{outcome}");
    assert!(ranks.iter().all(|rank| kill_process(*rank, Signal::CONT).is_err()), "{ranks:?}");
    served.is_as_before();
}

/// Flips a bit where a file has the first bytes of a rank.
fn damage(path: &Path, rank: u64) {
    let mut random = SplitMix64::new(mix(9 ^ mix(rank + 1)));
    let words: Vec<u8> = (0..8).flat_map(|_| random.next_u64().to_le_bytes()).collect();
    let bytes = fs::read(path).unwrap();
    let place = bytes.windows(words.len()).position(|window| window == words).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&[bytes[place + 5] ^ 4], place as u64 + 5).unwrap();
}

#[test]
fn wrong_bytes_are_noticed() {
    let served = Served::new("shm");
    let running = endless(&served, &ENDLESS_LOADS);
    damage(&served.folder.path().join("volume.img"), 2);
    let line = running.wait().failure();
    assert!(line.contains("rank 2: ") && line.contains("\"rank2/tensors\""), "{line}");
    assert!(line.contains("are damaged"), "{line}");
    served.is_as_before();

    let running = endless(&served, &ENDLESS_LOADS);
    let saved = || {
        let beside = fs::read_dir(served.beside()).unwrap().next()?.unwrap().path();
        Some(beside.join("files/save-0/rank1.bin")).filter(|path| path.exists())
    };
    eventually("a file is there", || saved().is_some());
    damage(&saved().unwrap(), 1);
    let line = running.wait().failure();
    assert!(line.contains("files: rank 1 read other bytes than were saved, from byte 5"), "{line}");
    served.is_as_before();
}

#[test]
fn what_a_namespace_holds_is_kept() {
    let served = Served::unformatted("shm");
    let image = served.folder.path().join("volume.img");
    let file = fs::File::options().write(true).open(&image).unwrap();
    file.write_all_at(b"\x53\xEF", 1080).unwrap();
    let run = |options: &[&str]| served.bench(&SMALL).args(["--loads", "0"]).args(options).run();
    let line = run(&[]).failure();
    assert!(line.contains("not those of a checkpoint volume"), "{line}");
    let line = run(&["--format"]).failure();
    assert!(line.contains("an ext4 file system") && line.contains("must be forced"), "{line}");
    run(&["--format", "--force", "--saves", "1"]).success();
    let line = served.bench(&["--scale", "100"]).run().failure();
    assert!(line.contains("bytes are needed, and"), "{line}");
    let line = run(&["--python", "/nonexistent/python"]).failure();
    assert!(line.contains("/nonexistent/python"), "{line}");
    let line =
        run(&["--metrics", "http://127.0.0.1:1/metrics", "--metrics", "http://h:1"]).failure();
    assert!(line.contains("1 URLs, and 2 of metrics"), "{line}");
    served.is_as_before();
}

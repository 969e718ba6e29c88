//! `feedrail bench-loader` against a daemon in another process.

use std::fs;
use std::path::{Path, PathBuf};

use feedrail_tests::process::{Bytes, Daemon, Outcome, Program, eventually, feedrail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// No multiple of a block, so that the last one is short.
const SHARD_BYTES: usize = (1 << 20) + 492;

/// Two shards at a daemon that runs.
struct Served {
    folder: TempDir,
    daemon: Daemon,
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let paths = [("a.bin", 1), ("b.bin", 2)].map(|(name, seed)| {
            let path = folder.path().join(name);
            fs::write(&path, Bytes::new(seed).take(SHARD_BYTES)).unwrap();
            path
        });
        Self { daemon: Daemon::serving(paths), folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command, for all of the subsystem's shards.
    fn table(&self, options: &[&str]) -> Program {
        let url = format!("nvmf://{}/{}", self.daemon.address(), self.daemon.nqn());
        feedrail(["bench-loader", &url]).args(options)
    }

    /// Likewise, with its results as JSON.
    fn bench(&self, options: &[&str]) -> Program {
        self.table(options).args(["-o", "json"])
    }

    fn local(&self) -> [String; 4] {
        let path = |name| self.path(name).display().to_string();
        ["--local".to_owned(), path("a.bin"), "--local".to_owned(), path("b.bin")]
    }
}

const TINY: [&str; 10] = [
    "--sample-size",
    "2050",
    "--batch-size",
    "16",
    "--steps",
    "4",
    "--rounds",
    "2",
    "--ranks",
    "2",
];

fn json(outcome: Outcome) -> Value {
    serde_json::from_slice(&outcome.success()).unwrap()
}

fn result<'a>(report: &'a Value, reader: &str, cache: impl Into<Value>) -> &'a Value {
    let cache = cache.into();
    let results = report["results"].as_array().unwrap();
    let found = results.iter().find(|one| one["reader"] == reader && one["cache"] == cache);
    found.unwrap_or_else(|| panic!("no {reader}, {cache} in {report}"))
}

#[test]
fn every_reader_gets_the_same_bytes() {
    let served = Served::new();
    let pid = served.daemon.id().to_string();
    let options = ["--verify", "--compute-time", "0.5", "--target-pid", &pid, "--randseed", "5"];
    let program = served.bench(&TINY).args(options).args(served.local());
    let report = json(program.run());
    assert_eq!((&report["randseed"], &report["shards"]), (&5.into(), &2.into()));
    // 511 samples of 2,050 bytes fit into each.
    assert_eq!(report["units"], 2 * 511);
    assert!(report["provider"].as_str().unwrap().starts_with("shm"), "{report}");
    let readers = [("feedrail", 2), ("pread", 3), ("mmap", 2), ("io_uring", 3), ("no reads", 1)];
    for (reader, ways) in readers {
        let results = report["results"].as_array().unwrap();
        let results = results.iter().filter(|one| one["reader"] == reader);
        let results: Vec<&Value> = results.collect();
        assert_eq!(results.len(), ways, "{reader}: {report}");
        for one in results.into_iter().filter(|one| one["unavailable"].is_null()) {
            let batches = if reader == "no reads" { 0 } else { 2 * 2 * 4 };
            assert_eq!(one["batches"], 2 * 2 * 3, "{one}");
            assert_eq!(one["verified_batches"], batches, "{one}");
            assert_eq!(one["bytes"], batches * 16 * 2050, "{one}");
            let resident = one["cache_resident_percent_before"].as_f64();
            let stayed = one["cache"] == "cold" && resident.is_none_or(|percent| percent > 1.0);
            assert!(!stayed || one["cache_warning"].is_string(), "{one}");
            assert!(one["au"].as_f64().is_some_and(|au| au > 0.0 && au <= 1.0), "{one}");
            assert!(one["first_batch_seconds"].as_f64().is_some(), "{one}");
            assert!(one["target_cpu_seconds"].is_null() == (reader != "feedrail"), "{one}");
        }
    }
    let ours = result(&report, "feedrail", "warm");
    assert!(ours["samples_per_second_by_best_baseline"].as_f64().is_some_and(|ratio| ratio > 0.0));
    let direct = result(&report, "pread", "direct");
    if direct["unavailable"].is_null() {
        assert!(direct["amplification"].as_f64().is_some_and(|factor| factor >= 1.5), "{direct}");
    }
    assert_eq!(result(&report, "pread", "warm")["amplification"], 1.0);
}

#[test]
fn samples_are_those_of_an_index() {
    let served = Served::new();
    let index = served.path("index.npy");
    let paths = [served.path("a.bin"), served.path("b.bin")];
    let indexed = feedrail(["index", "--format", "tokens", "--block-size", "100", "--output"]);
    indexed.args([&index]).args(&paths).run().success();
    let index = index.to_str().unwrap();
    let options = ["--index", index, "--batch-size", "8", "--steps", "3", "--rounds", "1"];
    let report = json(served.bench(&options).args(served.local()).args(["--verify"]).run());
    let ours = result(&report, "feedrail", Value::Null);
    assert_eq!((&ours["bytes"], &ours["verified_batches"]), (&(3 * 8 * 202).into(), &3.into()));
    assert_eq!(ours["au"], Value::Null, "without computing");
    assert_eq!(ours["target_cpu_seconds"], Value::Null);

    fs::write(served.path("index.npy"), "no index").unwrap();
    let line = served.bench(&options).run().failure();
    assert!(line.contains("index.npy"), "{line}");
}

#[test]
fn the_table_names_the_workload_and_what_it_is_not() {
    let served = Served::new();
    let options = ["--workload", "nanogpt", "--steps", "2", "--rounds", "1", "--samples", "500"];
    let text = served.table(&options).run().success();
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("nanogpt: batches of 480 samples, computing 10.000 ms"), "{text}");
    assert!(text.contains("not comparable") && !text.contains("MLPerf"), "{text}");
    assert!(text.contains("n/a"), "there is no local reader to compare with: {text}");
}

#[test]
fn another_local_file_is_an_error() {
    let served = Served::new();
    let line = served.bench(&TINY).args(["--local"]).args([served.path("a.bin")]).run().failure();
    assert!(line.contains("there are 2 shards, and 1 local files"), "{line}");

    let other = |name: &str, content: Vec<u8>| {
        let path = served.path(name);
        fs::write(&path, content).unwrap();
        path
    };
    let run = |path: &Path| {
        let local = ["--local".into(), served.path("a.bin"), "--local".into(), path.to_owned()];
        served.bench(&TINY).args(local).run().failure()
    };
    let line = run(&other("short.bin", vec![0; 1000]));
    assert!(line.contains("short.bin has 1000 bytes"), "{line}");
    let mut content = Bytes::new(2).take(SHARD_BYTES);
    content.iter_mut().for_each(|byte| *byte ^= 1);
    let line = run(&other("changed.bin", content));
    assert!(line.contains("is not what") && line.contains("changed.bin"), "{line}");
}

#[test]
fn what_cannot_be_run_is_an_error() {
    let served = Served::new();
    for (options, part) in [
        (&["--workload", "unet3d"][..], "long enough for one sample"),
        (&["--workload", "resnet50"], "lower --batch-size"),
        (&["--sample-size", "4K", "--batch-size", "1", "--target-pid", "4294967295"], "target-pid"),
    ] {
        let line = served.bench(options).run().failure();
        assert!(line.contains(part), "{line}");
    }
    let file = served.path("a.bin");
    let file = file.to_str().unwrap();
    let line = feedrail(["bench-loader", file]).args(TINY).run().failure();
    assert!(line.contains("--local"), "{line}");
}

/// Starts what does not end by itself, and waits until it reads.
fn endless(served: &Served) -> feedrail_tests::process::Running {
    let options = ["--sample-size", "4K", "--batch-size", "4", "--steps", "100000"];
    let limits = ["--compute-time", "10", "--rounds", "100", "--timeout", "1000"];
    let running = served.bench(&options).args(limits).start();
    eventually("it reads", || served.daemon.stats()["io"]["reads"].as_u64().unwrap() > 20);
    running
}

#[test]
fn a_target_that_dies_is_named() {
    let served = Served::new();
    let running = endless(&served);
    let address = served.daemon.address().to_string();
    served.daemon.signal(Signal::KILL);
    let outcome = running.wait();
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert!(result(&report, "feedrail", Value::Null)["bytes"].as_u64().unwrap() > 0, "{report}");
    let line = outcome.failure();
    assert!(line.contains(&address) && line.contains(".bin"), "{line}");
}

#[test]
fn an_interrupt_prints_what_was_measured() {
    let served = Served::new();
    let running = endless(&served);
    kill_process(Pid::from_raw(running.id().cast_signed()).unwrap(), Signal::INT).unwrap();
    let outcome = running.wait();
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(130), "{outcome}");
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert!(result(&report, "feedrail", Value::Null)["bytes"].as_u64().unwrap() > 0, "{report}");
}

//! `feedrail perf` against a daemon in another process.

use std::fs;

use feedrail_tests::process::{Bytes, Daemon, DaemonOptions, eventually, feedrail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

const SIZE_BYTES: usize = 4 << 20;

fn serve(arguments: &[&str]) -> (TempDir, Daemon, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let content = Bytes::new(4).take(SIZE_BYTES);
    fs::write(&path, &content).unwrap();
    let options = arguments
        .iter()
        .fold(DaemonOptions::files([path]), |options, argument| options.arg(argument));
    (folder, options.start(), content)
}

fn perf(daemon: &Daemon, options: &[&str]) -> Value {
    let program = feedrail(["perf", "-o", "json"]).args(daemon.options()).args(options);
    serde_json::from_slice(&program.run().success()).unwrap()
}

#[test]
fn counts_add_up() {
    let (_folder, daemon, content) = serve(&[]);
    let options = [
        "--rw",
        "randread",
        "--bs",
        "4k",
        "--iodepth",
        "16",
        "--numjobs",
        "2",
        "--number-ios",
        "500",
        "--provider",
        "soft",
    ];
    let report = perf(&daemon, &options);
    let read = &report["results"]["read"];
    assert_eq!(read["total_ios"], 1000);
    assert_eq!(read["io_bytes"], 1000 * 4096);
    assert_eq!(report["results"]["write"]["total_ios"], 0);
    assert_eq!(
        report["results"]["direct_bytes"],
        1000 * 4096,
        "aligned reads need no bounce buffer"
    );
    assert!(report["provider"].as_str().unwrap().starts_with("soft"), "{report}");
    let percentile = |name: &str| read["lat_ns"]["percentile"][name].as_u64().unwrap();
    assert!(percentile("50.0") <= percentile("99.0") && percentile("99.0") <= percentile("99.9"));
    assert!(feedrail(["read"]).args(daemon.options()).run().success() == content);
}

#[test]
fn shared_memory_carries_reads_and_writes() {
    let (_folder, daemon, content) = serve(&["--writable", "--provider", "shm"]);
    let shm = ["--provider", "shm"];
    let read = || feedrail(["read"]).args(daemon.options()).args(shm).run().success();
    assert!(read() == content);
    for (pattern, block) in [("randread", "4k"), ("randread", "1m"), ("randrw", "700")] {
        let options = ["--rw", pattern, "--bs", block, "--iodepth", "32", "--number-ios", "200"];
        let report = perf(&daemon, &[&options[..], &shm[..], &["--allow-writes"]].concat());
        assert_eq!(report["provider"], "shm: as asked for");
        let ios = |kind: &str| report["results"][kind]["total_ios"].as_u64().unwrap();
        assert_eq!(ios("read") + ios("write"), 200, "{pattern} {block}");
    }
    let changed = read();
    assert!(changed.len() == content.len() && changed != content, "nothing was written");
}

#[test]
fn every_pattern_and_unaligned_blocks() {
    let (_folder, daemon, _) = serve(&["--writable"]);
    for (pattern, block) in [
        ("read", "128k"),
        ("randread", "2050"),
        ("write", "64k"),
        ("randwrite", "4k"),
        ("rw", "8k"),
        ("randrw", "700"),
    ] {
        let options = [
            "--rw",
            pattern,
            "--bs",
            block,
            "--iodepth",
            "8",
            "--number-ios",
            "50",
            "--allow-writes",
        ];
        let results = &perf(&daemon, &options)["results"];
        let ios = |side: &str| results[side]["total_ios"].as_u64().unwrap();
        assert_eq!(ios("read") + ios("write"), 50, "{pattern}");
        assert_eq!(ios("write") > 0, pattern.contains("w"), "{pattern}");
    }
}

#[test]
fn writes_must_be_allowed() {
    let (_folder, daemon, content) = serve(&["--writable"]);
    for pattern in ["write", "randwrite", "rw", "randrw"] {
        let line = feedrail(["perf", "--rw", pattern]).args(daemon.options()).run().failure();
        assert!(line.contains("--allow-writes"), "{line}");
    }
    assert!(feedrail(["read"]).args(daemon.options()).run().success() == content);
}

#[test]
fn a_block_that_does_not_fit() {
    let (_folder, daemon, _) = serve(&[]);
    let line = feedrail(["perf", "--bs", "5M"]).args(daemon.options()).run().failure();
    assert!(line.contains("does not fit"), "{line}");
    feedrail(["perf", "--bs", "0"]).args(daemon.options()).run().failure();
}

#[test]
fn connections_share_the_depth() {
    let (_folder, daemon, _) = serve(&[]);
    let before = daemon.stats()["connections_accepted"].as_u64().unwrap();
    let options = ["--number-ios", "100", "--iodepth", "8", "--connections", "4"];
    let report = perf(&daemon, &[&options[..], &["--provider", "soft"]].concat());
    assert_eq!(report["results"]["read"]["total_ios"], 100);
    assert!(report["results"]["wire"]["packets_sent"].as_u64().unwrap() >= 100, "{report}");
    let accepted = daemon.stats()["connections_accepted"].as_u64().unwrap() - before;
    assert_eq!(accepted, 8, "an admin queue and an I/O queue for each");
}

#[test]
fn training_jobs_read_the_files_bytes() {
    let (folder, daemon, _) = serve(&[]);
    let file = folder.path().join("disk.img");
    for workload in ["nanogpt-2050", "resnet50", "webdataset-seq"] {
        let options = ["--number-ios", "40", "--iodepth", "4", "--workload", workload];
        let file = file.to_str().unwrap();
        let files = ["--verify", file, "--baseline", file];
        let report = perf(&daemon, &[&options[..], &files].concat());
        assert_eq!(report["rw"], workload);
        assert_eq!(report["results"]["read"]["total_ios"], 40);
        for way in ["pread", "mmap"] {
            assert_eq!(report["baselines"][way]["read"]["total_ios"], 40, "{way}");
        }
    }
}

#[test]
fn a_failed_baseline_keeps_the_measurement() {
    let (folder, daemon, _) = serve(&[]);
    let missing = folder.path().join("missing");
    let options = ["--number-ios", "7", "--baseline", missing.to_str().unwrap(), "-o", "json"];
    let outcome = feedrail(["perf"]).args(daemon.options()).args(options).run();
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert_eq!(report["results"]["read"]["total_ios"], 7);
    let line = outcome.failure();
    assert!(line.contains("missing"), "{line}");
}

#[test]
fn an_interrupt_ends_it_baselines_included() {
    let (folder, daemon, _) = serve(&[]);
    let file = folder.path().join("disk.img");
    let options = ["--runtime", "3600", "--baseline", file.to_str().unwrap(), "-o", "json"];
    let running = feedrail(["perf"]).args(daemon.options()).args(options).start();
    eventually("it reads", || daemon.stats()["io"]["reads"].as_u64().unwrap() > 0);
    kill_process(Pid::from_raw(running.id().cast_signed()).unwrap(), Signal::INT).unwrap();
    let outcome = running.wait();
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(130), "{outcome}");
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert!(report["results"]["read"]["total_ios"].as_u64().unwrap() > 0, "{report}");
    assert_eq!(report["baselines"], serde_json::json!({}));
}

#[test]
fn bytes_that_are_not_the_files_are_noticed() {
    let (folder, daemon, mut content) = serve(&[]);
    content.iter_mut().for_each(|byte| *byte ^= 1);
    let file = folder.path().join("other.img");
    fs::write(&file, content).unwrap();
    let options = ["--number-ios", "1", "--verify", file.to_str().unwrap()];
    let line = feedrail(["perf"]).args(daemon.options()).args(options).run().failure();
    assert!(line.contains("are not what the file has there"), "{line}");
}

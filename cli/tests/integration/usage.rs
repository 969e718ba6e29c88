//! Wrong usage and help.

use std::fs::File;
use std::io;
use std::process::{Command, Stdio};

use feedrail_tests::process::{binary, feedrail};

#[test]
fn help_shows_every_command_and_examples() {
    let text = String::from_utf8(feedrail(["--help"]).run().success()).unwrap();
    for command in [
        "devices",
        "doctor",
        "discover",
        "list",
        "id-ctrl",
        "id-ns",
        "read",
        "write",
        "perf",
        "bench-loader",
        "bench-checkpoint",
        "index",
        "manifest",
        "checkpoint",
        "target",
        "gen-dhchap-key",
        "check-dhchap-key",
        "demo",
        "completions",
        "man",
    ] {
        assert!(text.contains(command), "{command}: {text}");
        let help = String::from_utf8(feedrail([command, "--help"]).run().success()).unwrap();
        assert!(help.contains(&format!("Usage: feedrail {command}")), "{command}: {help}");
        assert!(help.contains(&format!("Examples:\n  feedrail {command}")), "{command}: {help}");
    }
    assert!(text.contains("Examples:"));
    assert!(!text.contains("target-process"), "the daemon of demos is nobody's command");
    assert!(!text.contains("checkpoint-rank"), "nor is a rank of bench-checkpoint");
}

#[test]
fn long_help_explains_each_command() {
    for (command, sentence) in [
        ("read", "A range beyond the end is an error"),
        ("write", "the bytes of one are lost without an error"),
        ("perf", "Options are fio's"),
        ("bench-loader", "with a sleep as compute time"),
        ("bench-checkpoint", "until the slowest rank has its bytes, which are compared afterwards"),
        ("list", "reports names and sizes in bytes"),
        ("target", "which only the target's user and root may use"),
        ("doctor", "4 the worst finding is an error"),
        ("index", "Shards are numbered in the order of the arguments"),
        ("checkpoint", "an interrupted `put` leaves the volume as it was"),
        ("manifest", "Shards of one name are replicas of one shard"),
    ] {
        let help = String::from_utf8(feedrail([command, "--help"]).run().success()).unwrap();
        let in_one_line = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(in_one_line.contains(sentence), "{command}: {help}");
    }
}

#[test]
fn a_misspelt_log_level_is_an_error() {
    let outcome = feedrail(["devices"]).env("RUST_LOG", "wran").run();
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(2), "{outcome}");
    assert!(outcome.failure().contains("`wran` is not a log level"));
}

#[test]
fn nvme_clis_short_options_are_understood() {
    // No target is at that address, so that the only error left is not to be connected.
    let options = [
        "-t",
        "rdma",
        "-a",
        "127.255.255.1",
        "-s",
        "4421",
        "-w",
        "127.255.255.2",
        "-n",
        "nqn.2026-01.a:b",
        "-q",
        "nqn.2026-01.a:h",
        "-I",
        "7f1c4c7e-6c1c-4a51-9fd0-0b6a0c7f8a11",
        "-i",
        "2",
        "-Q",
        "64",
        "-k",
        "5",
        "--provider",
        "soft",
        "--tos",
        "104",
        "--ack-timeout",
        "18",
        "--timeout",
        "1000",
    ];
    let line = feedrail(["id-ctrl", "-o", "json"]).args(options).run().failure();
    assert!(line.contains("127.255.255.1"), "{line}");
}

#[test]
fn wrong_options_are_refused_before_anything_happens() {
    for options in [
        &["read", "-a", "127.0.0.1"][..],
        &["read", "-a", "localhost", "-n", "nqn.2026-01.a:b"],
        &["read", "-a", "127.0.0.1", "-n", ""],
        &["read", "-a", "127.0.0.1", "-n", "nqn.2026-01.a:b", "--offset", "-1"],
        &["read", "-a", "127.0.0.1", "-n", "nqn.2026-01.a:b", "--length", "4KB"],
        &["id-ns", "-a", "127.0.0.1", "-n", "nqn.2026-01.a:b", "--namespace-id", "0"],
        &["discover", "-t", "tcp", "-a", "127.0.0.1"],
        &["perf", "-a", "127.0.0.1", "-n", "nqn.2026-01.a:b", "--rw", "trim"],
        &["discover", "-a", "127.0.0.1", "--provider", "magic"],
        &["doctor", "-n", "nqn.2026-01.a:b"],
        &["doctor", "--interval", "0"],
        &["index", "--output", "index.npy"],
        &["index", "train.bin"],
        &["index", "train.bin", "--output", "index.npy", "--block-size", "0"],
        &["index", "nvmf://127.0.0.1", "--output", "index.npy"],
        &["manifest", "train.bin", "--output", "manifest.json"],
        &["gen-dhchap-key", "--hmac", "4"],
        &["gen-dhchap-key", "--nqn", ""],
        &["check-dhchap-key", "--key", "a", "--keyfile", "b"],
        &["completions", "tcsh"],
        &["man"],
        &["teleport"],
    ] {
        let outcome = feedrail(options).run();
        assert_eq!(
            outcome.status.and_then(|status| status.code()),
            Some(2),
            "{options:?}: {outcome}"
        );
    }
}

#[test]
fn a_missing_provider_is_one_line() {
    let options = ["-a", "127.0.0.1", "-n", "nqn.2026-01.a:b", "--provider", "verbs"];
    let outcome = feedrail(["id-ctrl"]).args(options).run();
    assert!(outcome.failure().contains("verbs"));
}

#[test]
fn an_unwritable_stderr_changes_no_exit_code() {
    // No target is at that address; with -vvv there is much to log before it fails.
    let unreachable = ["id-ctrl", "-vvv", "-a", "127.255.255.1", "-n", "nqn.2026-01.a:b"];
    let soon = ["--provider", "soft", "--timeout", "1000"];
    let missing = ["demo", "/nothing/is/here"];
    for arguments in [&[&unreachable[..], &soon].concat()[..], &missing] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = Command::new(binary("feedrail"))
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(full)
            .status()
            .unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_stdout_that_nobody_reads_is_no_error() {
    let (reader, writer) = io::pipe().unwrap();
    drop(reader);
    let ended = Command::new(binary("feedrail")).arg("devices").stdout(writer).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    assert_eq!(ended.status.code(), Some(141));
}

#[test]
fn a_closed_stdout_is_an_error() {
    let binary = binary("feedrail");
    let script = format!("exec '{}' devices >&-", binary.display());
    let ended = Command::new("sh").args(["-c", &script]).output().unwrap();
    let line = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{line}");
    assert!(line.contains("stdout: it is closed"), "{line}");
    let null = Command::new(binary).arg("devices").stdout(Stdio::null()).status().unwrap();
    assert!(null.success());
}

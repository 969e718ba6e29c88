//! Ctrl-C during `feedrail read` and `feedrail write`.

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};

use feedrail_tests::process::{
    Daemon, DaemonOptions, binary, eventually, loopback_address, write_configuration,
};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A piece of a transfer.
const PIECE_BYTES: usize = 512 << 10;

/// A target of memory that delays the start of each operation by `delay_us`.
fn memory_target(folder: &TempDir, delay_us: u64) -> Daemon {
    let configuration = format!(
        r#"
        [[port]]
        address = "{address}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:slow"
        allow_any_host = true
        [[subsystem.namespace]]
        kind = "memory"
        size_bytes = "64MiB"
        read_only = false
        faults = {{ delay_us = {delay_us} }}
        "#,
        address = loopback_address(),
    );
    let file = write_configuration(folder.path(), &configuration);
    DaemonOptions::default().arg("--config").arg(file).start()
}

fn start(verb: &str, daemon: &Daemon, options: &[&str]) -> Child {
    Command::new(binary("feedrail"))
        .arg(verb)
        .args(daemon.options())
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Interrupts a command and gives its one line.
fn interrupt(child: Child) -> String {
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let ended = child.wait_with_output().unwrap();
    let line = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(130), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
    assert!(line.contains("interrupted"), "{line}");
    line
}

#[test]
fn an_interrupted_read_keeps_the_old_file() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = memory_target(&folder, 1_000_000);
    let copies = tempfile::tempdir().unwrap();
    let copy = copies.path().join("copy");
    fs::write(&copy, "old").unwrap();
    let child = start("read", &daemon, &["--file", copy.to_str().unwrap()]);
    let count = || fs::read_dir(copies.path()).unwrap().count();
    eventually("the read writes beside the file", || count() == 2);
    // The first data is a second away, so the read cannot be over by then.
    eventually("signals are handled", || handles_interrupts(child.id()));
    let line = interrupt(child);
    assert!(line.contains("was not written"), "{line}");
    assert_eq!(fs::read(&copy).unwrap(), b"old");
    assert_eq!(count(), 1);
}

#[test]
fn an_interrupted_write_reports_its_progress() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = memory_target(&folder, 1);
    let mut child = start("write", &daemon, &[]);
    // The input stays open and silent after a piece and a byte.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&vec![1; PIECE_BYTES + 1]).unwrap();
    eventually("the input is read", || rustix::io::ioctl_fionread(&stdin).unwrap() == 0);
    let line = interrupt(child);
    assert!(line.contains("only the first 524288 bytes were written"), "{line}");
    drop(stdin);
}

/// Whether SIGINT no longer has its default action, by the kernel's mask of caught signals.
fn handles_interrupts(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << (Signal::INT.as_raw() - 1)) != 0
}

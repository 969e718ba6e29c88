//! `feedrail demo`: the first command of a new user.

use std::fs;
use std::path::Path;

use feedrail_tests::process::{Bytes, Outcome, Program, Running, eventually, feedrail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

fn sample(bytes: usize) -> (TempDir, String, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.bin");
    let content = Bytes::new(3).take(bytes);
    fs::write(&path, &content).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path, content)
}

/// A demo whose temporary files are in a folder of their own.
fn demo(temporary: &Path) -> Program {
    feedrail(["demo"]).env("TMPDIR", temporary)
}

/// A demo that is caught in a state. A demo that ended before this test looked at it is followed by
/// another.
#[track_caller]
fn demo_in_state(
    demo: impl Fn() -> Program,
    state: &str,
    is_in: impl Fn(&Running) -> bool,
) -> Running {
    for _ in 0..100 {
        let mut running = demo().start();
        eventually(state, || is_in(&running) || running.has_ended());
        if !running.has_ended() {
            return running;
        }
        running.wait().success();
    }
    panic!("a hundred demos ended before {state}");
}

fn is_empty(folder: &Path) -> bool {
    fs::read_dir(folder).unwrap().next().is_none()
}

/// Processes, other than itself, whose command line contains a text.
fn processes_with(text: &str) -> Vec<u32> {
    let own = std::process::id();
    let ids = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter(|id| *id != own)
        .filter(|id| {
            let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(text)
        })
        .collect()
}

#[test]
fn files_of_any_length_read_back_unchanged() {
    for bytes in [1, 511, 18_071, (8 << 20) + 492] {
        let (folder, path, content) = sample(bytes);
        let temporary = tempfile::tempdir().unwrap();
        let text = demo(temporary.path()).args([&path]).run().success();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("every byte is right") && text.contains("shm: "), "{text}");
        assert!(fs::read(&path).unwrap() == content);
        assert!(is_empty(temporary.path()));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(processes_with(&path), [0_u32; 0]);
    }
}

#[test]
fn a_seed_is_printed_and_repeats() {
    let (_folder, path, _) = sample(1 << 20);
    let temporary = tempfile::tempdir().unwrap();
    let ranges = |text: Vec<u8>| {
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("seed 77"), "{text}");
        text.lines().find(|line| line.contains("ranges, random order")).unwrap().to_owned()
    };
    let run = || ranges(demo(temporary.path()).args([&path, "--seed", "77"]).run().success());
    assert_eq!(run(), run());
}

#[test]
fn unfit_files_are_one_line_errors() {
    let temporary = tempfile::tempdir().unwrap();
    let missing = temporary.path().join("missing");
    let line = demo(temporary.path()).args([&missing]).run().failure();
    assert!(line.contains("missing"), "{line}");
    demo(temporary.path()).args([temporary.path()]).run().failure();
    assert!(is_empty(temporary.path()));
}

#[test]
fn refused_io_uring_is_a_one_line_error() {
    let (_folder, path, _) = sample(5000);
    let temporary = tempfile::tempdir().unwrap();
    let line = demo(temporary.path()).args([&path]).without_io_uring().run().failure();
    assert!(line.contains("io_uring") && line.contains("seccomp"), "says how to allow it: {line}");
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let marker = temporary.path().to_str().unwrap().to_owned();
    let code = |outcome: &Outcome| outcome.status.and_then(|status| status.code());
    for signal in [Signal::INT, Signal::TERM] {
        let interrupted = || {
            // It makes its file or reads it back: in both cases it must clean up.
            let running = demo_in_state(
                || demo(temporary.path()),
                "there is a file",
                |_| !is_empty(temporary.path()),
            );
            let pid = Pid::from_raw(running.id().cast_signed()).unwrap();
            kill_process(pid, signal).unwrap();
            running.wait()
        };
        // On a busy machine it may be over before the signal comes.
        let mut outcomes = (0..100).map(|_| interrupted());
        let outcome =
            outcomes.find(|outcome| code(outcome) != Some(0)).expect("one is told in time");
        assert_eq!(code(&outcome), Some(130), "{outcome}");
        assert!(is_empty(temporary.path()));
        assert_eq!(processes_with(&marker), [0_u32; 0]);
    }
}

#[test]
fn a_dead_target_is_an_error_without_leftovers() {
    let temporary = tempfile::tempdir().unwrap();
    let marker = temporary.path().to_str().unwrap().to_owned();
    let target = |demo: &Running| processes_with(&marker).into_iter().find(|id| *id != demo.id());
    let killed = || {
        let start = || demo(temporary.path());
        let running = demo_in_state(start, "the target runs", |demo| target(demo).is_some());
        // On a busy machine it may be over by now.
        let target = Pid::from_raw(target(&running)?.cast_signed())?;
        kill_process(target, Signal::KILL).ok()?;
        Some(running.wait())
    };
    let outcome = (0..100).find_map(|_| killed()).expect("one is killed in time");
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(1), "{outcome}");
    assert!(outcome.stderr.contains("target process ended"), "{outcome}");
    assert!(is_empty(temporary.path()));
}

#[test]
fn a_killed_demo_ends_its_target() {
    let (_folder, path, _) = sample((64 << 20) + 1);
    let temporary = tempfile::tempdir().unwrap();
    let running = demo(temporary.path()).args([&path, "--depth", "1"]).start();
    let own = running.id();
    let others = || processes_with(&path).into_iter().filter(|id| *id != own).count();
    eventually("the target runs", || others() > 0);
    kill_process(Pid::from_raw(own.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let _ = running.wait();
    eventually("the target is gone", || others() == 0);
}

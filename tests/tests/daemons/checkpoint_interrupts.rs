//! Ctrl-C in commands of `feedrail checkpoint`: the exit status is 130, and nothing remains of what
//! they were doing.

use std::fs;

use feedrail_tests::process::{Program, eventually};
use rustix::process::Signal;
use serde_json::Value;

use super::checkpoint_volume::{MIB, Volume, files};

/// A command may end before the signal, where the machine is fast or the test slow.
const ATTEMPTS: u32 = 20;
/// Twice the memory for data on its way.
const BYTES: u64 = 128 * MIB;

/// Runs a command again and again until a signal has interrupted it after `is_busy`.
#[track_caller]
fn interrupt(what: &str, command: impl Fn() -> Program, is_busy: impl Fn() -> bool) {
    for _ in 0..ATTEMPTS {
        let mut running = command().start();
        eventually(what, || is_busy() || running.has_ended());
        if running.has_ended() {
            running.wait().success();
            continue;
        }
        running.signal(Signal::INT);
        let outcome = running.wait();
        match outcome.status.and_then(|status| status.code()) {
            Some(0) => {}
            Some(130) => {
                let line = outcome.failure();
                assert!(line.contains("interrupted"), "{line}");
                return;
            }
            _ => panic!("{what}: {outcome}"),
        }
    }
    panic!("{what}: it always ended before the signal");
}

#[test]
fn interrupted_commands_leave_nothing() {
    let volume = Volume::formatted(512 * MIB, "shm");
    let count = |kind: &str| volume.daemon.stats()["io"][kind].as_u64().unwrap();
    let source = volume.path("source");
    fs::create_dir(&source).unwrap();
    fs::File::create(source.join("model.bin")).unwrap().set_len(BYTES).unwrap();
    let source = source.display().to_string();

    let before = count("writes");
    let put = || volume.command(&["put"], &["one", &source]);
    interrupt("it writes", put, || count("writes") > before + 8);
    assert_eq!(volume.names(), [""; 0]);
    let show = volume.json(&["show"], &[]);
    assert_eq!(show["lease"], Value::Null, "the lease was given back");
    let free_bytes = show["free_bytes"].as_u64().unwrap();
    put().run().success();
    assert!(
        volume.json(&["show"], &[])["free_bytes"].as_u64().unwrap() >= free_bytes - BYTES - 8 * MIB
    );

    let to = volume.path("to");
    let folder = to.display().to_string();
    let part = || fs::read_dir(&to).is_ok_and(|mut files| files.next().is_some());
    let get = || {
        let _ = fs::remove_dir_all(&to);
        volume.command(&["get"], &["one", &folder])
    };
    interrupt("it has made a file", get, part);
    assert_eq!(files(&to), [].into());

    let verify = || volume.command(&["verify"], &[]);
    let before = count("reads");
    interrupt("it reads", verify, || count("reads") > before + 8);
    verify().run().success();
}

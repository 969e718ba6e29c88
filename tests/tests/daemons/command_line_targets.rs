//! `feedrail target`: which target it finds, and what it shows of it.

use std::fs;
use std::path::{Path, PathBuf};

use feedrail_tests::process::{Daemon, DaemonOptions, feedrail};
use tempfile::TempDir;

fn start(folder: &TempDir) -> (Daemon, PathBuf) {
    let [file, socket] = ["file", "socket"].map(|name| folder.path().join(name));
    fs::write(&file, "bytes").unwrap();
    (DaemonOptions::files([&file]).arg("--management").arg(&socket).start(), socket)
}

#[test]
fn targets_that_run_are_found() {
    if Path::new("/run/feedrail").exists() {
        eprintln!("left out: a target of this machine has /run/feedrail");
        return;
    }
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let targets = folders.each_ref().map(start);
    // Other tests have targets at the same time, so there are two at least.
    let outcome = feedrail(["target", "show"]).run();
    assert!(!outcome.status.is_some_and(|status| status.success()), "{outcome}");
    for (_, socket) in &targets {
        assert!(outcome.stderr.contains(&socket.display().to_string()), "{outcome}");
    }
    assert!(outcome.stderr.contains("choose one with --socket"), "{outcome}");
}

#[test]
fn addresses_and_hosts_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let (daemon, socket) = start(&folder);
    let shown = feedrail(["target", "show", "--socket"]).args([&socket]).run().success();
    let shown = String::from_utf8(shown).unwrap();
    let access = shown.lines().find(|line| line.contains(&daemon.address().to_string()));
    assert!(access.is_some_and(|line| line.ends_with("  any")), "{shown}");
}

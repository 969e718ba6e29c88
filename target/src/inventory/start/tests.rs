//! Tests of opened configurations.

use std::path::Path;

use nvme_proto::Nsid;

use super::*;

fn subsystem(dir: &Path, rest: &str) -> Result<Arc<Inventory>, ExportError> {
    let text = format!(
        "state_dir = \"state\"\n[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.io.feedrail:t\"\nallow_any_host = true\n{rest}\n"
    );
    let config = Config::from_toml(&dir.join("feedrail.toml"), &text).expect("valid");
    Inventory::open(&config, OpenPurpose::Serve)
}

fn names(inventory: &Inventory) -> Vec<(u32, String, u64)> {
    let namespaces = inventory.subsystems()[0].namespaces();
    namespaces.iter().map(|n| (n.nsid.0, n.name().to_owned(), n.size_blocks)).collect()
}

const DIRECTORY: &str = "[[subsystem.directory]]\npath = \"d\"";

#[test]
fn directory_nsids_survive_added_and_removed_files() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = |name: &str, bytes| {
        std::fs::write(dir.path().join("d").join(name), vec![1; bytes]).expect("written");
    };
    std::fs::create_dir(dir.path().join("d")).expect("made");
    file("b", 1);
    file("c", 513);
    let inventory = subsystem(dir.path(), DIRECTORY).expect("exported");
    assert_eq!(names(&inventory), [(1, "b".into(), 1), (2, "c".into(), 2)]);
    let uuid = inventory.namespaces()[1].uuid();

    std::fs::remove_file(dir.path().join("d/b")).expect("removed");
    file("a", 512);
    let inventory = subsystem(dir.path(), DIRECTORY).expect("exported");
    assert_eq!(names(&inventory), [(2, "c".into(), 2), (3, "a".into(), 1)]);
    assert_eq!(inventory.subsystems()[0].namespace(Nsid(2)).expect("there").uuid(), uuid);
    assert!(inventory.subsystems()[0].namespace(Nsid(1)).is_none());
}

#[test]
fn unfit_files_of_a_directory_are_skipped() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("d")).expect("made");
    let writable = format!("{DIRECTORY}\nread_only = false\nlba_bytes = 512");
    std::fs::write(dir.path().join("d/ragged"), vec![1; 100]).expect("written");
    let error = subsystem(dir.path(), &writable).expect_err("nothing fits");
    assert!(matches!(error, ExportError::Open { .. }), "{error}");

    std::fs::write(dir.path().join("d/whole"), vec![1; 512]).expect("written");
    let inventory = subsystem(dir.path(), &writable).expect("exported");
    assert_eq!(names(&inventory), [(2, "whole".into(), 1)], "ragged keeps its NSID");
}

#[test]
fn two_directories_do_not_share_a_name() {
    let dir = tempfile::tempdir().expect("a folder");
    for path in ["d", "e"] {
        std::fs::create_dir(dir.path().join(path)).expect("made");
        std::fs::write(dir.path().join(path).join("a"), "a").expect("written");
    }
    let both = format!("{DIRECTORY}\n[[subsystem.directory]]\npath = \"e\"");
    let error = subsystem(dir.path(), &both).expect_err("one NSID for two files");
    assert!(matches!(error, ExportError::SameName { .. }), "{error}");
}

#[test]
fn listed_namespaces_go_before_and_twins_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("d")).expect("made");
    std::fs::write(dir.path().join("d/a"), "a").expect("written");
    let listed = "[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 512\n";
    let inventory = subsystem(dir.path(), &format!("{listed}{DIRECTORY}")).expect("exported");
    assert_eq!(names(&inventory), [(1, "null-1".into(), 1), (2, "a".into(), 1)]);

    let named = "dataset_id = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b12\"\n[[subsystem.namespace]]\n\
                 kind = \"null\"\nsize_bytes = 512\nname = \"a\"\n";
    let error = subsystem(dir.path(), &format!("{named}{DIRECTORY}")).expect_err("twins");
    assert!(matches!(error, ExportError::SameIdentity { .. }), "{error}");
}

#[test]
fn a_file_that_is_written_is_exported_once() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("disk"), [1; 4096]).expect("written");
    std::fs::hard_link(dir.path().join("disk"), dir.path().join("hard")).expect("linked");
    std::os::unix::fs::symlink("disk", dir.path().join("soft")).expect("linked");
    let one = |path: &str, read_only: bool| {
        format!("[[subsystem.namespace]]\npath = \"{path}\"\nread_only = {read_only}\n")
    };
    for path in ["hard", "soft"] {
        for (first, second) in [(false, true), (true, false), (false, false)] {
            let both = one("disk", first) + &one(path, second);
            let error = subsystem(dir.path(), &both).expect_err("one file").to_string();
            assert!(error.contains("\"disk\"") && error.contains(path), "{error}");
        }
        subsystem(dir.path(), &(one("disk", true) + &one(path, true))).expect("only read");
    }
}

#[test]
fn two_targets_do_not_share_a_writable_file() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("disk"), [1; 4096]).expect("written");
    let table = |read_only: bool| {
        format!("[[subsystem.namespace]]\npath = \"disk\"\nread_only = {read_only}\n")
    };
    for (first, second) in [(false, false), (false, true), (true, false)] {
        let held = subsystem(dir.path(), &table(first)).expect("the lock is free");
        let error = subsystem(dir.path(), &table(second)).expect_err("in use").to_string();
        let pid = format!("process {} (", std::process::id());
        assert!(error.contains("disk: is in use by") && error.contains(&pid), "{error}");
        drop(held);
    }
    let held = subsystem(dir.path(), &table(true)).expect("the lock is free");
    let other = subsystem(dir.path(), &table(true)).expect("it is only read");
    drop((held, other));
    subsystem(dir.path(), &table(false)).expect("it was given up");
}

#[test]
fn targets_of_the_same_shards_agree_on_identity() {
    let uuids = || {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(dir.path().join("d/train")).expect("made");
        std::fs::write(dir.path().join("d/train/0.tar"), "a").expect("written");
        let dataset = "dataset_id = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b12\"\n";
        let inventory = subsystem(dir.path(), &format!("{dataset}{DIRECTORY}")).expect("exported");
        inventory.namespaces()[0].uuid()
    };
    assert_eq!(uuids(), uuids());
}

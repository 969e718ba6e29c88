//! `feedrail checkpoint` against daemons that serve a writable file.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use feedrail_tests::process::{Bytes, Daemon, eventually};
use serde_json::Value;

use super::checkpoint_volume::{MIB, Volume, files, options};

/// Twenty files of odd sizes, some in folders, one of them empty.
fn odd_files(folder: &Path) {
    let mut random = Bytes::new(71);
    let sizes = [
        0, 1, 511, 512, 513, 4095, 4096, 4097, 65_537, 1_048_575, 1_048_576, 1_048_577, 2_097_152,
        3_145_745, 7, 12_345, 99_999, 500_001, 1_500_000, 2_500_003,
    ];
    for (index, size) in sizes.into_iter().enumerate() {
        let place = folder.join(format!("rank{}/part", index % 3));
        fs::create_dir_all(&place).unwrap();
        fs::write(place.join(format!("model.{index}")), random.take(size)).unwrap();
    }
}

fn round_trip(provider: &'static str) {
    let volume = Volume::formatted(192 * MIB, provider);
    let source = volume.path("source");
    odd_files(&source);
    let source = source.display().to_string();
    let all_bytes: usize = files(source.as_ref()).values().map(Vec::len).sum();

    let dry = volume.json(&["put"], &["step-1", &source, "--dry-run"]);
    assert_eq!(dry["entries"], 20);
    assert_eq!(volume.names(), [""; 0]);
    let put = ["step-1", &source, "--step", "1", "--metadata", "loss=0.5"];
    let put = volume.json(&["put"], &put);
    assert_eq!(put["bytes"], all_bytes);
    assert!(dry["seconds"].is_null() && put["seconds"].as_f64().is_some_and(|time| time > 0.0));
    let list = volume.json(&["list"], &[]);
    assert_eq!(list["checkpoints"][0]["step"], 1);
    assert_eq!(list["checkpoints"][0]["metadata"]["loss"], "0.5");
    assert_eq!(list["volume"]["lease"], Value::Null, "the writer gives it back");
    let show = volume.json(&["show"], &["step-1"]);
    assert_eq!(show["entries"].as_array().unwrap().len(), 20);
    volume.check("step-1", &source);
    let to = volume.path("restored").display().to_string();
    let get = volume.json(&["get"], &["step-1", &to]);
    assert!(get["seconds"].as_f64().is_some_and(|time| time > 0.0), "{get}");
    assert_eq!(get["failed_reads"], 0);
    let verified = volume.json(&["verify"], &[]);
    assert_eq!(verified["bytes"], all_bytes);

    // Two more; the first is deleted with the commit of the third.
    volume.command(&["put"], &["step-2", &source]).run().success();
    volume.command(&["put"], &["step-3", &source, "--keep", "2"]).run().success();
    assert_eq!(volume.names(), ["step-2", "step-3"]);
    volume.command(&["rm"], &["step-2", "--dry-run"]).run().success();
    volume.command(&["rm"], &["step-2"]).run().success();
    assert_eq!(volume.names(), ["step-3"]);
    volume.check("step-3", &source);

    // The space of the deleted checkpoint is free again.
    let free = || volume.json(&["show"], &[])["free_bytes"].as_u64().unwrap();
    volume.command(&["rm"], &["step-3"]).run().success();
    let before = free();
    volume.command(&["put"], &["again", &source]).run().success();
    volume.command(&["rm"], &["again"]).run().success();
    assert_eq!(free(), before);
}

#[test]
fn folders_come_back_over_soft() {
    round_trip("soft");
}

#[test]
fn folders_come_back_over_shm() {
    round_trip("shm");
}

#[test]
fn files_are_not_replaced_without_force() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.source("source", b"saved");
    volume.command(&["put"], &["one", &source]).run().success();
    let to = volume.source("to", b"mine");
    let line = volume.command(&["get"], &["one", &to]).run().failure();
    assert!(line.contains("is there already"), "{line}");
    assert_eq!(fs::read(volume.path("to/model.bin")).unwrap(), b"mine");
    volume.command(&["get"], &["one", &to, "--force", "--dry-run"]).run().success();
    assert_eq!(fs::read(volume.path("to/model.bin")).unwrap(), b"mine");
    volume.command(&["get"], &["one", &to, "--force"]).run().success();
    assert_eq!(fs::read(volume.path("to/model.bin")).unwrap(), b"saved");
    let line = volume.command(&["get"], &["one", &to, "--entry", "none"]).run().failure();
    assert!(line.contains("no entry \"none\""), "{line}");
}

#[test]
fn a_killed_writer_leaves_the_old_checkpoint() {
    let volume = Volume::formatted(256 * MIB, "shm");
    let old = volume.source("old", &Bytes::new(72).take(3_000_000));
    volume.command(&["put"], &["old", &old]).run().success();
    let new = volume.source("new", &Bytes::new(73).take(100 << 20));
    let writes = || volume.daemon.stats()["io"]["writes"].as_u64().unwrap();
    let before = writes();
    let writer = volume.command(&["put"], &["new", &new, "--lease", "1"]).start();
    eventually("it writes", || writes() > before + 8);
    writer.kill();

    volume.command(&["verify"], &[]).run().success();
    volume.check("old", &old);
    // Killed after its commit, if it was fast.
    if volume.names().contains(&"new".to_owned()) {
        volume.check("new", &new);
    }
    // Its lease of a second and the grace period of 30 s end first.
    volume.command(&["put"], &["next", &new, "--keep", "1", "--wait", "100"]).run().success();
    volume.check("next", &new);
    assert_eq!(volume.names(), ["next"]);
}

#[test]
fn a_killed_target_has_the_old_or_the_new_checkpoint() {
    let mut volume = Volume::formatted(256 * MIB, "soft");
    let old = volume.source("old", &Bytes::new(74).take(3_000_000));
    volume.command(&["put"], &["old", &old]).run().success();
    let new = volume.source("new", &Bytes::new(75).take(100 << 20));
    let writes = |daemon: &Daemon| daemon.stats()["io"]["writes"].as_u64().unwrap();
    let before = writes(&volume.daemon);
    let writer = volume.command(&["put"], &["new", &new, "--lease", "1"]).start();
    eventually("it writes", || writes(&volume.daemon) > before + 8);
    volume.restart();

    let is_acknowledged = writer.wait().status.is_some_and(|status| status.success());
    volume.command(&["verify"], &[]).run().success();
    volume.check("old", &old);
    let is_there = volume.names().contains(&"new".to_owned());
    assert!(is_there || !is_acknowledged, "an acknowledged checkpoint is lost");
    if is_there {
        volume.check("new", &new);
    }
    volume.command(&["put"], &["next", &old, "--wait", "100"]).run().success();
    volume.check("next", &old);
}

#[test]
fn what_the_namespace_holds_is_kept() {
    let volume = Volume::new(16 * MIB, "shm");
    volume.image().write_all_at(b"\x53\xEF", 1080).unwrap();
    let before = fs::read(volume.path("volume.img")).unwrap();
    for dry in [&[][..], &["--dry-run"]] {
        let line = volume.command(&["format"], dry).run().failure();
        assert!(line.contains("an ext4 file system") && line.contains("must be forced"), "{line}");
    }
    volume.command(&["format"], &["--force", "--dry-run"]).run().success();
    assert!(fs::read(volume.path("volume.img")).unwrap() == before);
    volume.command(&["format"], &["--force"]).run().success();
    let line = volume.command(&["format"], &[]).run().failure();
    assert!(line.contains("a checkpoint volume"), "{line}");
}

#[test]
fn unfit_namespaces_are_named() {
    let small = Volume::new(2 * MIB, "shm");
    let line = small.command(&["format"], &[]).run().failure();
    assert!(line.contains("the namespace has 2097152 bytes, and the volume needs"), "{line}");
    let line = small.command(&["list"], &[]).run().failure();
    assert!(line.contains("not those of a checkpoint volume"), "{line}");

    let volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.source("source", b"bytes");
    let Volume { folder, daemon, provider } = volume;
    // A file that is written has one target.
    daemon.kill();
    let daemon = options(folder.path(), provider).start();
    let volume = Volume { folder, daemon, provider };
    let commands = [&["format"][..], &["put", "one", &source], &["rm", "one"]];
    for words in commands {
        let line = volume.command(&words[..1], &words[1..]).run().failure();
        assert!(line.contains("write protected"), "{words:?}: {line}");
    }
    assert_eq!(volume.names(), [""; 0]);
}

#[test]
fn damaged_and_newer_superblocks_are_named() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.source("source", b"bytes");
    volume.command(&["put"], &["one", &source]).run().success();
    let image = volume.image();
    let mut blocks = [[0; 4096]; 2];
    for (block, offset) in blocks.iter_mut().zip([0, 65_536]) {
        image.read_exact_at(block, offset).unwrap();
    }
    let generation = |block: &[u8; 4096]| u64::from_le_bytes(block[48..56].try_into().unwrap());
    let newest = usize::from(generation(&blocks[1]) > generation(&blocks[0]));

    // The newest one is torn: the other has the same checkpoint, since only the lease was given
    // back since.
    let offset = [0, 65_536][newest];
    image.write_all_at(&[0xA5; 2048], offset + 2048).unwrap();
    assert_eq!(volume.names(), ["one"]);
    assert_eq!(volume.json(&["show"], &[])["is_fallen_back"], true);
    volume.check("one", &source);

    // A newer version, then both torn.
    let mut newer = blocks[newest];
    newer[8] = 2;
    let crc = crc32c::crc32c(&newer[..4092]);
    newer[4092..].copy_from_slice(&crc.to_le_bytes());
    image.write_all_at(&newer, offset).unwrap();
    for (words, name) in [(["list"], None), (["put"], Some("two"))] {
        let arguments: Vec<_> = name.into_iter().chain(name.map(|_| source.as_str())).collect();
        let line = volume.command(&words, &arguments).run().failure();
        assert!(line.contains("written by a newer version"), "{line}");
    }
    for offset in [0, 65_536] {
        image.write_all_at(&[0xA5; 2048], offset + 2048).unwrap();
    }
    let line = volume.command(&["list"], &[]).run().failure();
    assert!(line.contains("torn or damaged"), "{line}");
    let line = volume.command(&["format"], &[]).run().failure();
    assert!(line.contains("must be forced"), "a torn volume may be repaired: {line}");
}

#[test]
fn wrong_names_and_full_volumes_lose_nothing() {
    let volume = Volume::formatted(8 * MIB, "shm");
    let source = volume.source("source", &[7; 1_000_000]);
    volume.command(&["put"], &["one", &source]).run().success();
    let large = volume.source("large", &[8; 8 << 20]);
    for dry in [&[][..], &["--dry-run"]] {
        let arguments = [&["two", &large][..], dry].concat();
        let line = volume.command(&["put"], &arguments).run().failure();
        assert!(line.contains("bytes are needed, and"), "{line}");
        assert!(line.contains("delete checkpoints first"), "{line}");
    }
    for name in ["..", "a\nb", "a/b", ""] {
        let line = volume.command(&["put"], &[name, &source]).run().failure();
        assert!(line.contains("is not allowed"), "{line}");
    }
    fs::write(volume.path("line\nbreak"), "bytes").unwrap();
    let file = volume.path("line\nbreak").display().to_string();
    let line = volume.command(&["put"], &["two", &file]).run().failure();
    assert!(line.contains("is not allowed"), "{line}");
    let line = volume.command(&["put"], &["one", &source]).run().failure();
    assert!(line.contains("already"), "{line}");
    for words in [["rm"], ["verify"], ["show"]] {
        let line = volume.command(&words, &["none"]).run().failure();
        assert!(line.contains("no checkpoint") && line.contains("none"), "{line}");
    }
    assert_eq!(volume.names(), ["one"]);
    volume.check("one", &source);
    assert_eq!(volume.json(&["show"], &[])["lease"], Value::Null);
}

#[test]
fn bit_rot_is_found_and_not_returned() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let bytes = Bytes::new(76).take(3_000_001);
    let source = volume.source("source", &bytes);
    volume.command(&["put"], &["one", &source]).run().success();
    let image = fs::read(volume.path("volume.img")).unwrap();
    let second = &bytes[1 << 20..(1 << 20) + 64];
    let place = image.windows(64).position(|window| window == second).unwrap();
    volume.image().write_all_at(&[image[place + 40] ^ 4], place as u64 + 40).unwrap();

    let outcome = volume.command(&["verify"], &["-o", "json"]).run();
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    assert!(outcome.failure().contains("1 units are damaged"));
    let damaged = &report["damaged"][0];
    assert_eq!(damaged["entry"], "model.bin");
    assert_eq!(damaged["offset"], 1 << 20);
    assert_eq!(damaged["namespace_offset"], place);
    let to = volume.path("to").display().to_string();
    let line = volume.command(&["get"], &["one", &to]).run().failure();
    assert!(line.contains("the bytes 1048576 to 2097151 of \"model.bin\""), "{line}");
    assert_eq!(files(to.as_ref()).len(), 0);
}

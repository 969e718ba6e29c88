//! Checkpoint volumes and arguments that are wrong: a clear error, and nothing is lost.

use std::fs;
use std::os::unix::fs::{FileExt as _, symlink};
use std::path::Path;

use feedrail_checkpoint_store::{CheckpointStore, StoreError, StoreOptions, VolumeNamespace};
use feedrail_initiator::{Host, RdmaProvider};
use feedrail_tests::process::{Bytes, DaemonOptions, Outcome, feedrail, host};

use super::checkpoint_volume::{MIB, Volume, files};

/// One line and the exit status 1.
#[track_caller]
fn refused(outcome: Outcome) -> String {
    assert_eq!(outcome.status.and_then(|status| status.code()), Some(1), "{outcome}");
    outcome.failure()
}

fn shm_host() -> Host {
    host().provider(RdmaProvider::Shm).build().unwrap()
}

#[test]
fn whatever_a_namespace_holds_is_named_and_kept() {
    let volume = Volume::new(16 * MIB, "shm");
    let kinds: [(u64, &[u8], &str); 11] = [
        (512, b"EFI PART", "a GPT partition table"),
        (510, b"\x55\xAA", "an MBR partition table"),
        (1080, b"\x53\xEF", "an ext4 file system"),
        (0, b"XFSB", "an XFS file system"),
        (65_600, b"_BHRfS_M", "a Btrfs file system"),
        (0, b"LUKS\xBA\xBE", "a LUKS volume"),
        (512, b"LABELONE", "an LVM physical volume"),
        (0, b"PK\x03\x04", "a ZIP archive"),
        (257, b"ustar", "a tar archive"),
        (0, b"\x40\0\0\0\0\0\0\0{\"a\":", "a safetensors file"),
        (65_536, b"FRCKPTV\0", "a checkpoint volume"),
    ];
    for (offset, magic, name) in kinds {
        volume.image().write_all_at(magic, offset).unwrap();
        let before = fs::read(volume.path("volume.img")).unwrap();
        let line = refused(volume.command(&["format"], &[]).run());
        assert!(line.contains(&format!("the namespace holds {name}")), "{line}");
        assert!(fs::read(volume.path("volume.img")).unwrap() == before, "{name} was changed");
        volume.image().write_all_at(&vec![0; magic.len()], offset).unwrap();
    }
    volume.command(&["format"], &[]).run().success();
}

#[test]
fn names_and_metadata_out_of_range_are_refused() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.source("source", b"bytes");
    volume.command(&["put"], &["one", &source]).run().success();
    let generation = || volume.json(&["show"], &[])["generation"].clone();
    let before = generation();
    let long = "n".repeat(1025);
    for name in ["a\tb", "a\x1B[31mb", "a\u{85}b", ".", &long] {
        let line = refused(volume.command(&["put"], &[name, &source]).run());
        assert!(line.contains("is not allowed") && !line.contains('\x1B'), "{line}");
    }
    let metadata = volume.path("metadata").display().to_string();
    fs::write(&metadata, vec![b'm'; (1 << 20) + 1]).unwrap();
    let line =
        refused(volume.command(&["put"], &["two", &source, "--metadata-file", &metadata]).run());
    assert!(line.contains("1048577 bytes, and 1048576 is the limit"), "{line}");
    assert_eq!(generation(), before, "the volume was not written");

    let most = "n".repeat(1024);
    fs::write(&metadata, vec![b'm'; 1 << 20]).unwrap();
    volume.command(&["put"], &[&most, &source, "--metadata-file", &metadata]).run().success();
    volume.check(&most, &source);
    volume.check("one", &source);
}

#[test]
fn a_volume_that_was_cut_off_is_refused_until_it_is_whole() {
    let mut volume = Volume::formatted(32 * MIB, "shm");
    let source = volume.source("source", &Bytes::new(81).take(3_000_000));
    volume.command(&["put"], &["one", &source]).run().success();
    let image = volume.path("volume.img");
    let tail = fs::read(&image).unwrap().split_off(16 << 20);
    let resize = |bytes| {
        fs::File::options().write(true).open(&image).unwrap().set_len(bytes).unwrap();
    };
    volume.restart_after(|| resize(16 * MIB));
    let words: [&[&str]; 4] = [&["list"], &["verify"], &["put", "two", &source], &["rm", "one"]];
    for words in words {
        let line = refused(volume.command(&words[..1], &words[1..]).run());
        let expected = "the namespace has 16777216 bytes, and the volume needs 33554432";
        assert!(line.contains(expected), "{words:?}: {line}");
    }
    let line = refused(volume.command(&["format"], &[]).run());
    assert!(line.contains("a checkpoint volume"), "{line}");
    volume.restart_after(|| {
        resize(32 * MIB);
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.write_all_at(&tail, 16 * MIB).unwrap();
    });
    volume.check("one", &source);
}

#[test]
fn a_target_that_is_away_is_named_once() {
    let mut volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.source("source", b"bytes");
    volume.daemon.crash();
    let words: [&[&str]; 3] = [&["list"], &["put", "one", &source], &["format"]];
    for words in words {
        let line = refused(volume.command(&words[..1], &words[1..]).run());
        assert_eq!(line.matches("cannot connect").count(), 1, "{line}");
    }
}

#[test]
fn one_of_several_namespaces_must_be_named() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let paths = ["a.img", "b.img"].map(|name| folder.path().join(name));
    for path in &paths {
        fs::File::create(path).unwrap().set_len(16 * MIB).unwrap();
    }
    let daemon = DaemonOptions::files(&paths).arg("--writable").start();
    let url = format!("nvmf://{}/{}", daemon.address(), daemon.nqn());
    for words in [&["format"][..], &["list"]] {
        let line = refused(feedrail(["checkpoint"]).args(words).args([&url]).run());
        assert!(line.contains("has 2 namespaces; name one in the URL"), "{line}");
    }
    assert!(paths.iter().all(|path| fs::read(path).unwrap().iter().all(|byte| *byte == 0)));
    feedrail(["checkpoint", "format", &format!("{url}/nsid:2")]).run().success();
    assert!(fs::read(&paths[0]).unwrap().iter().all(|byte| *byte == 0));
    let line = refused(feedrail(["checkpoint", "list", &format!("{url}/nsid:3")]).run());
    assert!(line.contains('3'), "{line}");
}

/// Replaces the file behind a namespace while a save is in progress, and returns the error of the
/// save. The new file must stay as it is.
fn replace_during_a_save(write: fn(&Path, &Path)) -> StoreError {
    let mut volume = Volume::formatted(32 * MIB, "shm");
    let source = volume.source("source", b"bytes");
    volume.command(&["put"], &["one", &source]).run().success();
    let place = VolumeNamespace::connect(&shm_host(), &volume.url().parse().unwrap()).unwrap();
    let image = volume.path("volume.img");
    let (old, other) = (volume.path("old.img"), volume.path("other.img"));
    fs::copy(&image, &old).unwrap();
    let store = CheckpointStore::open_writer(&place, StoreOptions::default()).unwrap();
    let mut save = store.begin("two", 2, Vec::new()).unwrap();
    save.write("first", &[1; 2_500_000]).unwrap();
    write(&old, &other);
    let before = fs::read(&other).unwrap();
    volume.restart_after(|| fs::rename(&other, &image).unwrap());
    let written = save.write("second", &[2; 2_500_000]);
    let error = written.and_then(|()| save.commit()).unwrap_err();
    drop(store);
    assert!(fs::read(&image).unwrap() == before, "the other file was written: {error}");
    error
}

#[test]
fn another_file_behind_the_writer_is_not_written() {
    let replacements: [fn(&Path, &Path); 3] = [
        |_, other| fs::File::create(other).unwrap().set_len(32 * MIB).unwrap(),
        |_, other| {
            let volume = Volume::formatted(32 * MIB, "shm");
            fs::copy(volume.path("volume.img"), other).unwrap();
        },
        |old, other| _ = fs::copy(old, other).unwrap(),
    ];
    for replacement in replacements {
        let error = replace_during_a_save(replacement).to_string();
        assert!(error.contains("the file behind it was replaced"), "{error}");
    }
}

#[test]
fn files_that_cannot_be_written_are_named() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.path("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("full"), "bytes").unwrap();
    let source = source.display().to_string();
    volume.command(&["put"], &["one", &source]).run().success();
    // A device that is always full, and a folder that nobody can write to.
    let line = refused(volume.command(&["get"], &["one", "/dev", "--force"]).run());
    assert!(line.contains("cannot write /dev/full: No space left on device"), "{line}");
    for folder in ["/proc/self", "/proc/none"] {
        let line = refused(volume.command(&["get"], &["one", folder]).run());
        assert!(line.contains(&format!("cannot write {folder}/full")), "{line}");
    }
    // A file where a folder must be.
    let file = volume.path("file").display().to_string();
    fs::write(&file, "mine").unwrap();
    let line = refused(volume.command(&["get"], &["one", &file]).run());
    assert!(line.contains("cannot write"), "{line}");
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    volume.check("one", &source);
}

#[test]
fn symbolic_links_do_not_lead_out_of_the_folder() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let source = volume.path("source");
    fs::create_dir_all(source.join("rank0")).unwrap();
    fs::write(source.join("config"), "new").unwrap();
    fs::write(source.join("rank0/model"), "new").unwrap();
    volume.command(&["put"], &["one", &source.display().to_string()]).run().success();
    let [outside, to] = ["outside", "to"].map(|name| volume.path(name));
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("model"), "mine").unwrap();

    for (link, target) in [("rank0", outside.clone()), ("config", outside.join("model"))] {
        fs::create_dir_all(&to).unwrap();
        symlink(target, to.join(link)).unwrap();
        for force in [&[][..], &["--force"], &["--force", "--dry-run"]] {
            let folder = to.display().to_string();
            let arguments = [&["one", &folder][..], force].concat();
            let line = refused(volume.command(&["get"], &arguments).run());
            assert!(line.contains(&format!("{link} is a symbolic link")), "{line}");
        }
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1, "nothing was written");
        fs::remove_dir_all(&to).unwrap();
    }
    assert_eq!(files(&outside), [("model".into(), b"mine".to_vec())].into());
}

#[test]
fn a_file_cannot_be_a_folder_too() {
    let volume = Volume::formatted(16 * MIB, "shm");
    let [one, two] = ["one", "two"].map(|name| volume.path(name));
    fs::create_dir_all(one.join("a")).unwrap();
    fs::create_dir_all(&two).unwrap();
    fs::write(one.join("a/b"), "inner").unwrap();
    fs::write(two.join("a"), "outer").unwrap();
    let [one, two] = [&one, &two].map(|path| path.display().to_string());
    let line = refused(volume.command(&["put"], &["both", &one, &two]).run());
    assert!(line.contains("\"a\" and \"a/b\" cannot both be files"), "{line}");

    // Other writers may save them.
    let place = VolumeNamespace::connect(&shm_host(), &volume.url().parse().unwrap()).unwrap();
    let store = CheckpointStore::open_writer(&place, StoreOptions::default()).unwrap();
    let mut save = store.begin("both", 0, Vec::new()).unwrap();
    save.write("a/b", b"inner").unwrap();
    save.write("a", b"outer").unwrap();
    save.commit().unwrap();
    store.close().unwrap();
    let to = volume.path("to").display().to_string();
    let line = refused(volume.command(&["get"], &["both", &to]).run());
    assert!(line.contains("choose one with --entry"), "{line}");
    assert!(!Path::new(&to).exists());
    volume.command(&["get"], &["both", &to, "--entry", "a/b"]).run().success();
    assert_eq!(fs::read(volume.path("to/a/b")).unwrap(), b"inner");
}

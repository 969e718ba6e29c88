//! Files that are served through the page cache, past it, or as the memory allows.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use feedrail_initiator::Namespace;
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, SetWhenDropped, empty_slice, eventually, host, slice_of,
    write_configuration,
};
use rustix::fs::Advice;
use serde_json::Value;
use tempfile::TempDir;

const SIZE_BYTES: usize = 1_000_001;
const MODES: [&str; 3] = ["always", "never", "auto"];

/// Not in /tmp, which may be a file system in memory.
fn folder() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A file, which is in the page cache and on the disk then.
fn file_in(folder: &Path, name: &str, bytes: &[u8]) -> File {
    fs::write(folder.join(name), bytes).unwrap();
    let file = File::open(folder.join(name)).unwrap();
    file.sync_all().unwrap();
    file
}

fn start(path: &Path, mode: &str, options: &[&str]) -> Daemon {
    let quick = DaemonOptions::files([path]).arg("--direct-io").arg(mode);
    options.iter().fold(quick, DaemonOptions::arg).start()
}

/// The bytes of files that a daemon has read, by their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReadBytes {
    cached: u64,
    buffered: u64,
    direct: u64,
}

impl ReadBytes {
    fn of(daemon: &Daemon) -> Self {
        let stats = daemon.stats();
        let of = |name: &str| match &stats["io"][name] {
            Value::Number(bytes) => bytes.as_u64().unwrap(),
            other => panic!("{name}: {other}"),
        };
        Self {
            cached: of("cached_read_bytes"),
            buffered: of("buffered_read_bytes"),
            direct: of("direct_read_bytes"),
        }
    }
}

/// Whether the file of `auto` has another way than that of `always`. The daemon logs more.
fn auto_is_as_always(daemon: &Daemon) -> bool {
    daemon.wait_for_log("access=");
    daemon.log().contains("access=direct")
}

fn read(namespace: &Namespace, offset: u64, length: usize) -> Vec<u8> {
    namespace.read_to_vec(offset, length).wait().unwrap()
}

#[test]
fn hot_files_are_served_from_memory() {
    let (folder, bytes) = (folder(), Bytes::new(1).take(SIZE_BYTES));
    file_in(folder.path(), "shard.bin", &bytes);
    for mode in MODES {
        let daemon = start(&folder.path().join("shard.bin"), mode, &["--log", "debug"]);
        let host = host().build().unwrap();
        let namespace = daemon.open(&host);
        for round in 0..2 {
            let before = ReadBytes::of(&daemon);
            for (offset, length) in
                [(0, SIZE_BYTES), (1, 1), (511, 2), (4095, 70_000), (SIZE_BYTES - 777, 777)]
            {
                let read = read(&namespace, offset as u64, length);
                assert!(read == bytes[offset..][..length], "{mode} {offset} {length}");
            }
            let after = ReadBytes::of(&daemon);
            let cached = mode == "never" || (mode == "auto" && !auto_is_as_always(&daemon));
            match cached {
                false => assert!(after.cached == 0, "{mode}: {after:?}"),
                true if round == 0 => assert_eq!(after.direct, 0, "{mode}: {after:?}"),
                true => {
                    assert!(after.cached >= before.cached + SIZE_BYTES as u64, "{after:?}");
                    assert_eq!(after, ReadBytes { cached: after.cached, ..before }, "{mode}");
                }
            }
        }
    }
}

#[test]
fn a_file_that_left_memory_is_read_from_the_disk() {
    let (folder, bytes) = (folder(), Bytes::new(2).take(SIZE_BYTES));
    let file = file_in(folder.path(), "shard.bin", &bytes);
    for mode in MODES {
        let daemon = start(&folder.path().join("shard.bin"), mode, &["--log", "debug"]);
        let host = host().build().unwrap();
        let namespace = daemon.open(&host);
        // The kernel may keep a page that it is using.
        let missed = (0..100).any(|_| {
            rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
            assert!(read(&namespace, 0, SIZE_BYTES) == bytes, "{mode}");
            let bytes = ReadBytes::of(&daemon);
            bytes.buffered + bytes.direct > 0
        });
        assert!(missed, "{mode}");
    }
}

#[test]
fn what_was_written_is_read_in_each_mode() {
    let folder = folder();
    for mode in MODES {
        let mut bytes = Bytes::new(3).take(1 << 20);
        file_in(folder.path(), "disk.img", &bytes);
        let path = folder.path().join("disk.img");
        let daemon = start(&path, mode, &["--writable"]);
        let host = host().build().unwrap();
        let namespace = daemon.open(&host);
        for round in 0..20 {
            let mut random = Bytes::new(round);
            let length = 1 + random.below(100_000) as usize;
            let offset = random.below((bytes.len() - length) as u64) as usize;
            assert!(read(&namespace, 0, bytes.len()) == bytes, "{mode}");
            let new = random.take(length);
            bytes[offset..][..length].copy_from_slice(&new);
            namespace.write(offset as u64, slice_of(&new)).wait().result.unwrap();
            assert!(read(&namespace, offset as u64, length) == new, "{mode} {round}");
        }
        namespace.flush().wait().unwrap();
        drop(daemon);
        assert!(fs::read(&path).unwrap() == bytes, "{mode}");
    }
}

#[test]
fn a_file_that_was_cut_fails_in_each_mode() {
    let folder = folder();
    let failures = MODES.map(|mode| {
        let file = file_in(folder.path(), "disk.img", &Bytes::new(4).take(1 << 20));
        let path = folder.path().join("disk.img");
        let daemon = start(&path, mode, &["--writable"]);
        let host = host().build().unwrap();
        let namespace = daemon.open(&host);
        read(&namespace, 0, 1 << 20);
        drop(file);
        File::options().write(true).open(&path).unwrap().set_len(100_000).unwrap();
        let outcome = namespace.read(98_304, empty_slice(8192)).wait();
        assert!(read(&namespace, 0, 65_536) == Bytes::new(4).take(1 << 20)[..65_536], "{mode}");
        format!("{:?}", outcome.result.unwrap_err().kind())
    });
    let [first, others @ ..] = &failures;
    assert!(others.iter().all(|other| other == first), "{failures:?}");
}

/// Starts a daemon on a hot file, and reads until the file is in locked memory; nothing where that
/// is impossible.
fn with_locked_file(path: &Path) -> Option<(Daemon, Namespace)> {
    let daemon = start(path, "auto", &["--log", "debug"]);
    if auto_is_as_always(&daemon) || !cfg!(target_arch = "x86_64") || !may_lock() {
        eprintln!("left out: files are not kept in memory here");
        return None;
    }
    let host = host().build().unwrap();
    let namespace = daemon.open(&host);
    let size = namespace.size_bytes() as usize;
    eventually("it is read from locked memory", || {
        let before = mapped_bytes(&daemon);
        read(&namespace, 0, size);
        mapped_bytes(&daemon) >= before + size as u64 / 2
    });
    Some((daemon, namespace))
}

fn mapped_bytes(daemon: &Daemon) -> u64 {
    daemon.stats()["io"]["mapped_read_bytes"].as_u64().unwrap()
}

fn may_lock() -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    rustix::process::geteuid().is_root() || limit.current.is_none()
}

#[test]
fn locked_files_are_read_without_system_calls() {
    let (folder, bytes) = (folder(), Bytes::new(6).take(5 << 20));
    let file = file_in(folder.path(), "shard.bin", &bytes);
    let Some((daemon, namespace)) = with_locked_file(&folder.path().join("shard.bin")) else {
        return;
    };
    let before = daemon.stats();
    let mut random = Bytes::new(7);
    for _ in 0..200 {
        let length = 1 + random.below(300_000) as usize;
        let offset = random.below((bytes.len() - length) as u64);
        assert!(read(&namespace, offset, length) == bytes[offset as usize..][..length]);
    }
    let after = daemon.stats();
    assert_eq!(after["system_calls"]["file"], before["system_calls"]["file"]);
    // The kernel does not take locked pages away.
    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    assert!(read(&namespace, 0, bytes.len()) == bytes);
    assert_eq!(daemon.stats()["io"]["buffered_read_bytes"], before["io"]["buffered_read_bytes"]);
}

/// The pages of a mapping that are gone raise a signal in whoever touches them.
#[test]
fn a_locked_file_that_is_cut_fails_its_reads_only() {
    let (folder, bytes) = (folder(), Bytes::new(8).take(6 << 20));
    file_in(folder.path(), "shard.bin", &bytes);
    file_in(folder.path(), "other.bin", &bytes);
    let path = folder.path().join("shard.bin");
    let Some((daemon, namespace)) = with_locked_file(&path) else { return };
    let over = AtomicBool::new(false);
    let (reads, failures) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for seed in 0..3 {
            let (namespace, bytes, over) = (&namespace, &bytes, &over);
            let (reads, failures) = (&reads, &failures);
            scope.spawn(move || {
                let mut random = Bytes::new(seed);
                while !over.load(Ordering::Relaxed) {
                    let length = 1 + random.below(200_000) as usize;
                    let offset = random.below((bytes.len() - length) as u64);
                    match namespace.read_to_vec(offset, length).wait() {
                        Ok(read) => {
                            assert!(read == bytes[offset as usize..][..length]);
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => {
                            failures.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let _over_at_the_end = SetWhenDropped(&over);
        eventually("reads have begun", || reads.load(Ordering::Relaxed) > 0);
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(1_000_000).unwrap();
        eventually("reads of what was cut fail", || {
            namespace.read_to_vec(4 << 20, 4096).wait().is_err()
        });
        // There are zeros now where the file had bytes: nobody is to see them.
        file.set_len(bytes.len() as u64).unwrap();
        assert!(namespace.read_to_vec(4 << 20, 4096).wait().is_err());
        eventually("reads in flight fail", || failures.load(Ordering::Relaxed) > 0);
    });
    let (status, _) = daemon.terminate();
    assert!(status.success(), "{status}");
}

#[test]
fn shards_of_a_directory_have_their_mode() {
    let folder = folder();
    fs::create_dir(folder.path().join("d")).unwrap();
    let bytes = Bytes::new(5).take(SIZE_BYTES);
    file_in(folder.path(), "d/a", &bytes);
    for mode in ["always", "never"] {
        let text = format!(
            "state_dir = \"state\"\n[[port]]\naddress = \"127.0.0.1:0\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-01.io.feedrail:t\"\nallow_any_host = true\n\
             [[subsystem.directory]]\npath = \"d\"\ndirect_io = \"{mode}\"\n"
        );
        let path = write_configuration(folder.path(), &text);
        let daemon = DaemonOptions::default().arg("--config").arg(path).start();
        let host = host().build().unwrap();
        let namespace = daemon.open(&host);
        for _ in 0..2 {
            assert!(read(&namespace, 99, 500_000) == bytes[99..][..500_000]);
        }
        let bytes = ReadBytes::of(&daemon);
        assert_eq!(bytes.cached > 0, mode == "never", "{mode}: {bytes:?}");
    }
}

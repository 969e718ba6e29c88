//! Namespaces as files of a mounted file system.
#![expect(unsafe_code, reason = "maps files")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, MountedFiles, eventually, feedrail, fuse_is_missing,
    loopback_address, write_configuration,
};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use tempfile::TempDir;

/// A target of a folder `shards`, which it watches.
pub(crate) fn serve(folder: &TempDir, keys: &str) -> Daemon {
    let text = format!(
        "state_dir = \"state\"\n{keys}[[port]]\naddress = \"{}:4420\"\n[[subsystem]]\n\
         nqn = \"nqn.2026-01.io.feedrail:mounted\"\nallow_any_host = true\n\
         [[subsystem.directory]]\npath = \"shards\"\nwatch = true\n",
        loopback_address()
    );
    let configuration = write_configuration(folder.path(), &text);
    DaemonOptions::default().arg("--config").arg(configuration).start()
}

/// Writes a file below `shards`, and returns its bytes.
pub(crate) fn write(folder: &TempDir, name: &str, seed: u64, length: usize) -> Vec<u8> {
    let path = folder.path().join("shards").join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let bytes = Bytes::new(seed).take(length);
    // In one step, so that a target sees it whole.
    let new = folder.path().join("new");
    fs::write(&new, &bytes).unwrap();
    fs::rename(&new, &path).unwrap();
    bytes
}

/// All files below a folder with their sizes.
fn sizes(root: &Path) -> BTreeMap<PathBuf, u64> {
    let (mut sizes, mut folders) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let path = entry.path().strip_prefix(root).unwrap().to_owned();
                    sizes.insert(path, entry.metadata().unwrap().len());
                }
            }
        }
    }
    sizes
}

fn xattr(path: &Path, name: &str) -> Result<String, Errno> {
    let mut value = [0; 1000];
    let length = rustix::fs::getxattr(path, name, &mut value[..])?;
    Ok(String::from_utf8(value[..length].to_vec()).unwrap())
}

#[test]
fn files_have_the_names_sizes_and_bytes_of_namespaces() {
    if fuse_is_missing() {
        return;
    }
    for provider in ["shm", "soft"] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let files = [("a.bin", 3_000_001), ("x/b", 1), ("x/y/c d.tar", 4_096), ("x/ä", 511)];
        let contents: Vec<_> = (1..)
            .zip(files)
            .map(|(seed, (name, length))| write(&folder, name, seed, length))
            .collect();
        let daemon = serve(&folder, "");
        let mounted = MountedFiles::of(&daemon, &["--provider", provider]);
        let expected = files.map(|(name, length)| (PathBuf::from(name), length as u64));
        assert_eq!(sizes(&mounted.path("")), expected.into());
        for ((name, _), bytes) in files.iter().zip(&contents) {
            assert!(fs::read(mounted.path(name)).unwrap() == *bytes, "{name}");
        }
        // Any part, from the page cache and not.
        let file = File::open(mounted.path("a.bin")).unwrap();
        for (offset, length) in [(0, 1), (4_095, 2), (1_000_003, 700_001), (2_999_999, 2)] {
            let mut part = vec![0; length];
            file.read_exact_at(&mut part, offset).unwrap();
            assert!(part == contents[0][offset as usize..][..length]);
        }
        let found = fs::metadata(mounted.path("a.bin")).unwrap();
        assert_eq!((found.mode() & 0o7777, found.blocks()), (0o444, 3_000_001u64.div_ceil(512)));
        let generation = xattr(&mounted.path("a.bin"), "user.feedrail.generation").unwrap();
        assert_eq!(generation.len(), 16);
        let target = xattr(&mounted.path("a.bin"), "user.feedrail.target").unwrap();
        assert!(target.starts_with(&format!("nvmf://{}", daemon.address().ip())), "{target}");
        assert_eq!(xattr(&mounted.path("x"), "user.feedrail.uuid"), Err(Errno::NODATA));
        let total = rustix::fs::statfs(mounted.path("")).unwrap();
        assert_eq!((total.f_files, total.f_bfree), (4, 0));
        // The same file is of the same time wherever it is mounted.
        drop(mounted);
        let again = MountedFiles::of(&daemon, &["--provider", provider]);
        let now = fs::metadata(again.path("a.bin")).unwrap();
        assert_eq!(now.modified().unwrap(), found.modified().unwrap());
    }
}

#[test]
fn nothing_can_be_changed_and_nothing_asked_does_harm() {
    if fuse_is_missing() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = write(&folder, "x/a", 1, 10_000);
    let daemon = serve(&folder, "");
    let mounted = MountedFiles::of(&daemon, &[]);
    let path = mounted.path("x/a");
    let refused = |result: io::Result<()>| {
        let error = result.unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::ROFS.raw_os_error()), "{error}");
    };
    refused(File::options().write(true).open(&path).map(drop));
    refused(File::options().append(true).open(&path).map(drop));
    refused(File::create(mounted.path("new")).map(drop));
    refused(fs::remove_file(&path));
    refused(fs::remove_dir(mounted.path("x")));
    refused(fs::create_dir(mounted.path("y")));
    refused(fs::rename(&path, mounted.path("b")));
    refused(fs::hard_link(&path, mounted.path("b")));
    refused(std::os::unix::fs::symlink("a", mounted.path("b")));
    refused(fs::set_permissions(&path, fs::Permissions::from_mode(0o777)));
    refused(fs::File::open(&path).unwrap().set_modified(std::time::UNIX_EPOCH));

    let file = File::open(&path).unwrap();
    let mut part = [0; 100];
    for offset in [10_000, 10_001, 1 << 40, i64::MAX as u64 - 4096] {
        assert_eq!(file.read_at(&mut part, offset).unwrap(), 0, "{offset}");
    }
    assert!(file.read_at(&mut part, u64::MAX).is_err());
    assert_eq!(file.read_at(&mut part, 9_950).unwrap(), 50);
    assert!(part[..50] == bytes[9_950..]);
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
    file.sync_all().unwrap();
    rustix::fs::flock(&file, FlockOperation::LockExclusive).unwrap();
    rustix::fs::flock(&file, FlockOperation::Unlock).unwrap();
    assert_eq!(rustix::termios::tcgetwinsize(&file).unwrap_err(), Errno::NOTTY);
    assert_eq!(fs::read(mounted.path("x/none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(fs::read(mounted.path("x/a/b")).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn files_can_be_mapped() {
    if fuse_is_missing() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let length = 4 << 20;
    let bytes = write(&folder, "tokens.bin", 1, length);
    let daemon = serve(&folder, "");
    let mounted = MountedFiles::of(&daemon, &[]);
    let file = File::open(mounted.path("tokens.bin")).unwrap();
    let map = || {
        // SAFETY: a new mapping of a file that nobody changes during the test.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )
        };
        // SAFETY: the mapping is that long, and stays.
        unsafe { std::slice::from_raw_parts(address.unwrap().cast::<u8>(), length) }
    };
    let mut random = Bytes::new(2);
    // A batch as training loops read it; the second time out of the page cache.
    for mapped in [map(), map()] {
        for _ in 0..480 {
            let offset = random.below((length - 2_050) as u64) as usize;
            assert!(mapped[offset..][..2_050] == bytes[offset..][..2_050]);
        }
        assert!(mapped == bytes);
    }
}

/// A database is read by parts, with locks, as its library sees fit.
#[test]
fn a_database_can_be_read() {
    if fuse_is_missing() {
        return;
    }
    let python =
        |code: &str, path: &Path| Command::new("python3").args(["-c", code]).arg(path).output();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::create_dir(folder.path().join("shards")).unwrap();
    let make = "import sqlite3, sys\nd = sqlite3.connect(sys.argv[1])\n\
                d.execute('create table t (a integer primary key, b text)')\n\
                d.executemany('insert into t values (?, ?)', ((i, 'x' * (i % 300)) for i in range(20000)))\n\
                d.execute('create index i on t (b)')\nd.commit()\n\
                w = sqlite3.connect(sys.argv[1] + '.wal')\nw.execute('pragma journal_mode=wal')\n\
                w.execute('create table t as select 7 a')\nw.commit()\nw.close()\n";
    let made = python(make, &folder.path().join("shards/data.db"));
    if !made.is_ok_and(|made| made.status.success()) {
        eprintln!("left out: there is no python3 with sqlite3 here");
        return;
    }
    let daemon = serve(&folder, "");
    let mounted = MountedFiles::of(&daemon, &[]);
    let read = "import sqlite3, sys\nd = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n\
                print(d.execute('pragma integrity_check').fetchone()[0],\n\
                d.execute('select count(*), sum(length(b)) from t').fetchone(),\n\
                d.execute('select count(*) from t where b = ?', ('x' * 7,)).fetchone()[0])\n\
                d.execute('pragma mmap_size=100000000')\n\
                w = sqlite3.connect(f'file:{sys.argv[1]}.wal?immutable=1', uri=True)\n\
                print(d.execute('select sum(a) from t').fetchone(), w.execute('select a from t').fetchone())\n";
    let read = python(read, &mounted.path("data.db")).unwrap();
    let said = String::from_utf8(read.stdout).unwrap();
    assert_eq!(
        said,
        "ok (20000, 2980000) 67\n(199990000,) (7,)\n",
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
}

#[test]
fn ten_thousand_files_are_found() {
    const FILES: usize = 10_000;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum;
    if fuse_is_missing() {
        return;
    }
    if limit.is_some_and(|limit| limit < FILES as u64 * 4 / 3 + 100) {
        eprintln!("left out: a process may not have as many descriptors here");
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for number in 0..FILES {
        let path = folder.path().join(format!("shards/{:02}/{number:05}", number % 100));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{number}\n")).unwrap();
    }
    let daemon = serve(&folder, "");
    let mounted = MountedFiles::of(&daemon, &[]);
    let found = sizes(&mounted.path(""));
    assert_eq!(found.len(), FILES);
    assert_eq!(found, sizes(&folder.path().join("shards")));
    for number in (0..FILES).step_by(997) {
        let path = mounted.path(&format!("{:02}/{number:05}", number % 100));
        assert_eq!(fs::read_to_string(path).unwrap(), format!("{number}\n"));
    }
}

#[test]
fn a_renamed_namespace_is_the_same_file_under_another_name() {
    if fuse_is_missing() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = write(&folder, "a", 1, 2 << 20);
    let nqn = "nqn.2026-01.io.feedrail:renamed";
    let text = format!(
        "state_dir = \"state\"\nmanagement = \"socket\"\n[[port]]\naddress = \"{}:4420\"\n\
         [[subsystem]]\nnqn = \"{nqn}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"shards/a\"\n",
        loopback_address()
    );
    let configuration = write_configuration(folder.path(), &text);
    let daemon = DaemonOptions::default().arg("--config").arg(configuration).start();
    let socket = folder.path().join("socket").display().to_string();
    let mounted = MountedFiles::of(&daemon, &[]);
    let file = File::open(mounted.path("a")).unwrap();
    let mut part = vec![0; 1 << 16];
    file.read_exact_at(&mut part, 0).unwrap();
    let mut old = "a";
    for new in ["x/b", "x/c", "a"] {
        feedrail(["target", "rename", nqn, "1", new, "--socket", &socket]).run().success();
        eventually("it has the new name", || {
            mounted.path(new).exists() && !mounted.path(old).exists()
        });
        let found = fs::metadata(mounted.path(new)).unwrap();
        assert_eq!(found.ino(), file.metadata().unwrap().ino());
        assert!(fs::read(mounted.path(new)).unwrap() == bytes);
        // A file that was opened under another name is read on, past the page cache as well.
        let whole = std::num::NonZeroU64::new(u64::MAX >> 1);
        rustix::fs::fadvise(&file, 0, whole, rustix::fs::Advice::DontNeed).unwrap();
        file.read_exact_at(&mut part, 1 << 20).unwrap();
        assert!(part == bytes[1 << 20..][..1 << 16]);
        old = new;
    }
    assert!(!mounted.path("x").exists());
}

//! Faults as readers of a mounted file system see them, and its end.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, MountedFiles, Program, Running, binary, eventually, feedrail,
    fuse_is_missing, pause,
};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::mount::{serve, write};

const SIZE_BYTES: usize = 2 << 20;

/// A target of one file, and its bytes.
fn serve_one() -> (TempDir, Vec<u8>, Daemon) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes = Bytes::new(1).take(SIZE_BYTES);
    let path = folder.path().join("a.bin");
    fs::write(&path, &bytes).unwrap();
    (folder, bytes, Daemon::serving([path]))
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

/// Drops the pages of a file from the page cache.
fn forget(file: &File) {
    let whole = std::num::NonZeroU64::new(u64::MAX >> 1);
    rustix::fs::fadvise(file, 0, whole, rustix::fs::Advice::DontNeed).unwrap();
}

/// A program that reads a file which is not in the page cache.
fn reader(path: &Path) -> Running {
    Program::new("cat").args([path]).start()
}

fn signal(process: &Running, signal: Signal) {
    let pid = Pid::from_raw(process.id().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Waits until a process sleeps in the kernel for the file system.
fn wait_until_it_reads(process: &Running, path: &Path) {
    let waits = || {
        let folder = format!("/proc/{}", process.id());
        let reads = fs::read_dir(format!("{folder}/fd")).is_ok_and(|fds| {
            fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|it| it == path))
        });
        let status = fs::read_to_string(format!("{folder}/stat")).unwrap_or_default();
        reads && status.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['S', 'D']))
    };
    eventually("it waits for bytes", waits);
}

#[test]
fn a_target_that_was_killed_comes_back_without_a_remount() {
    if fuse_is_missing() {
        return;
    }
    let (folder, bytes, daemon) = serve_one();
    let address = daemon.address();
    let mounted = MountedFiles::of(&daemon, &["--timeout", "1500"]);
    let path = mounted.path("a.bin");
    let file = File::open(&path).unwrap();
    let mut part = [0; 4096];
    file.read_exact_at(&mut part, 0).unwrap();
    daemon.kill();
    // What is in the page cache is there whoever is gone.
    file.read_exact_at(&mut part, 0).unwrap();
    assert!(part == bytes[..4096]);
    forget(&file);
    let error = file.read_at(&mut part, 1 << 20).unwrap_err();
    assert!(is(&error, Errno::IO), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE_BYTES as u64);

    let _daemon = DaemonOptions::files([folder.path().join("a.bin")]).at(address).start();
    eventually("it is read again", || file.read_exact_at(&mut part, 1 << 20).is_ok());
    assert!(part == bytes[1 << 20..][..4096]);
    // Each thread of the file system has a connection of its own.
    eventually("all of it is read again", || fs::read(&path).is_ok_and(|read| read == bytes));
}

#[test]
fn a_read_waits_for_a_target_that_comes_back_in_time() {
    if fuse_is_missing() {
        return;
    }
    let (folder, bytes, daemon) = serve_one();
    let address = daemon.address();
    let mounted = MountedFiles::of(&daemon, &["--timeout", "120000"]);
    let path = mounted.path("a.bin");
    daemon.kill();
    let waiting = reader(&path);
    wait_until_it_reads(&waiting, &path);
    let _daemon = DaemonOptions::files([folder.path().join("a.bin")]).at(address).start();
    assert!(waiting.wait().success() == bytes);
}

#[test]
fn a_target_that_stands_still_is_waited_for() {
    if fuse_is_missing() {
        return;
    }
    let (_folder, bytes, daemon) = serve_one();
    let mounted = MountedFiles::of(&daemon, &["--timeout", "120000"]);
    let path = mounted.path("a.bin");
    daemon.signal(Signal::STOP);
    let waiting = reader(&path);
    wait_until_it_reads(&waiting, &path);
    pause(Duration::from_secs(3));
    daemon.signal(Signal::CONT);
    assert!(waiting.wait().success() == bytes);
}

/// A reader ends by a signal while its target stands still, and so does the file system.
#[test]
fn readers_can_be_interrupted_and_the_file_system_unmounted() {
    if fuse_is_missing() {
        return;
    }
    let (_folder, _, daemon) = serve_one();
    // Nothing ends by itself during the test.
    let mut mounted = MountedFiles::of(&daemon, &["--timeout", "3600000", "--keep-alive-tmo", "0"]);
    let path = mounted.path("a.bin");
    daemon.signal(Signal::STOP);
    // Not SIGINT, which is ignored in what a shell has started in the background.
    for sent in [Signal::TERM, Signal::KILL] {
        let waiting = reader(&path);
        wait_until_it_reads(&waiting, &path);
        signal(&waiting, sent);
        let ended = waiting.wait();
        assert!(ended.status.is_some_and(|status| status.code().is_none()), "{ended}");
    }
    // One that handles the signal, and reads past the page cache: its read ends. The timer must not
    // fire once Python has taken the handler away at its exit.
    let code = "import os, signal, sys, mmap\n\
                f = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECT)\n\
                def end(*_):\n    signal.setitimer(signal.ITIMER_REAL, 0)\n    sys.exit(7)\n\
                signal.signal(signal.SIGALRM, end)\n\
                signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)\n\
                os.preadv(f, [mmap.mmap(-1, 65536)], 0)\n";
    let told = Program::new("python3").args(["-c", code]).args([&path]).run();
    assert_eq!(told.status.and_then(|status| status.code()), Some(7), "{told}");

    let waiting = reader(&path);
    wait_until_it_reads(&waiting, &path);
    let refused = mounted.unmount(&[]).failure();
    assert!(refused.contains("busy"), "{refused}");
    assert!(mounted.is_mounted());
    mounted.unmount(&["--force"]).success();
    assert!(!mounted.is_mounted());
    waiting.wait().failure();
    mounted.wait().success();
}

#[test]
fn a_signal_unmounts_under_readers() {
    if fuse_is_missing() {
        return;
    }
    for sent in [Signal::TERM, Signal::INT] {
        let (_folder, bytes, daemon) = serve_one();
        let mut mounted = MountedFiles::of(&daemon, &[]);
        let file = File::open(mounted.path("a.bin")).unwrap();
        let reading = thread::spawn(move || {
            let mut part = vec![0; 1 << 16];
            loop {
                forget(&file);
                if let Err(error) = file.read_exact_at(&mut part, 1 << 20) {
                    return error;
                }
                assert!(part == bytes[1 << 20..][..1 << 16]);
            }
        });
        mounted.signal(sent);
        mounted.wait().success();
        assert!(!mounted.is_mounted());
        let error = reading.join().unwrap();
        let expected = [Errno::NOTCONN, Errno::CONNABORTED, Errno::IO];
        assert!(expected.iter().any(|&errno| is(&error, errno)), "{error}");
    }
}

/// A daemon that was killed leaves a file system that answers nothing; it can be unmounted.
#[test]
fn what_a_killed_daemon_leaves_can_be_unmounted() {
    if fuse_is_missing() {
        return;
    }
    let (_folder, _, daemon) = serve_one();
    let mut mounted = MountedFiles::of(&daemon, &[]);
    mounted.signal(Signal::KILL);
    let _ = mounted.wait();
    let error = fs::metadata(mounted.path("a.bin")).unwrap_err();
    assert!(is(&error, Errno::NOTCONN), "{error}");
    mounted.unmount(&[]).success();
    assert!(fs::metadata(mounted.path("a.bin")).unwrap_err().kind() == io::ErrorKind::NotFound);
}

#[test]
fn readers_of_a_replaced_file_never_see_the_new_one() {
    if fuse_is_missing() {
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let old = write(&folder, "x/a", 1, SIZE_BYTES);
    let stays = write(&folder, "x/b", 2, SIZE_BYTES);
    let daemon = serve(&folder, "");
    let mounted = MountedFiles::of(&daemon, &[]);
    let path = mounted.path("x/a");
    let opened = File::open(&path).unwrap();
    let mut part = vec![0; 1 << 16];
    opened.read_exact_at(&mut part, 0).unwrap();
    assert!(fs::read(mounted.path("x/b")).unwrap() == stays);

    let new = write(&folder, "x/a", 3, SIZE_BYTES);
    write(&folder, "x/c", 4, 100);
    eventually("the new files are there", || {
        // The old one can be gone before the new one is there.
        let now = fs::read(&path).unwrap_or_default();
        assert!([&old[..], &new, &[]].contains(&&now[..]) || now.len() < SIZE_BYTES);
        now == new && mounted.path("x/c").exists()
    });
    let error = loop {
        match opened.read_exact_at(&mut part, 0) {
            Ok(()) => assert!(part == old[..1 << 16]),
            Err(error) => break error,
        }
    };
    assert!(is(&error, Errno::STALE) || is(&error, Errno::IO), "{error}");
    assert!(fs::read(mounted.path("x/b")).unwrap() == stays);

    fs::remove_file(folder.path().join("shards/x/b")).unwrap();
    eventually("the removed file is gone", || !mounted.path("x/b").exists());
    let names: Vec<_> =
        fs::read_dir(mounted.path("x")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// The pages of a file that was replaced while its target was away are those of no file.
#[test]
fn a_target_that_comes_back_with_another_file_has_a_new_one() {
    if fuse_is_missing() {
        return;
    }
    let (folder, old, daemon) = serve_one();
    let address = daemon.address();
    let mounted = MountedFiles::of(&daemon, &["--timeout", "1500"]);
    let path = mounted.path("a.bin");
    let opened = File::open(&path).unwrap();
    assert!(fs::read(&path).unwrap() == old);
    daemon.terminate();
    let new = Bytes::new(2).take(SIZE_BYTES + 1);
    fs::write(folder.path().join("new"), &new).unwrap();
    fs::rename(folder.path().join("new"), folder.path().join("a.bin")).unwrap();
    let _daemon = DaemonOptions::files([folder.path().join("a.bin")]).at(address).start();
    eventually("the new file is there", || fs::read(&path).is_ok_and(|read| read == new));
    let error = opened.read_at(&mut [0; 100], 0).unwrap_err();
    assert!(is(&error, Errno::STALE) || is(&error, Errno::IO), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), SIZE_BYTES as u64 + 1);
}

/// The command ends when the file system is there, or with an error and without one.
#[test]
fn the_command_ends_when_the_file_system_is_there() {
    if fuse_is_missing() {
        return;
    }
    let (_folder, bytes, daemon) = serve_one();
    let place = tempfile::tempdir().unwrap();
    let at = place.path().display().to_string();
    let url = format!("nvmf://{}/{}", daemon.address(), daemon.nqn());
    let mounted = feedrail(["mount", &url, &at, "-o", "rw,_netdev,allow_other"]).run();
    assert_eq!(mounted.success(), b"");
    assert!(fs::read(place.path().join("a.bin")).unwrap() == bytes);
    feedrail(["unmount", &at]).run().success();
    // The helper that mount(8) runs, as it runs it.
    let helper = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/debian/mount.feedrail");
    let programs = binary("feedrail").parent().unwrap().display().to_string();
    let words = [helper, &url, &at, "-n", "-o", "rw,noexec,_netdev,nofail,timeout=5000"];
    let path = format!("{programs}:/usr/bin:/bin");
    Program::new("/bin/sh").args(words).env("PATH", path).run().success();
    // By its source `mount -a` knows what is mounted.
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(mounts.contains(&format!("{url} {at} fuse.feedrail ro")), "{mounts}");
    assert!(fs::read(place.path().join("a.bin")).unwrap() == bytes);
    feedrail(["unmount", &at]).run().success();
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);

    let none = url.replace("nqn.", "nqn.1999-01.none:");
    let refused = feedrail(["mount", &none, &at]).run().failure();
    assert!(refused.starts_with("feedrail: "), "{refused}");
    let refused = feedrail(["mount", &url, &format!("{at}/none")]).run().failure();
    assert!(refused.contains("none"), "{refused}");
    let refused = feedrail(["mount", &url, &at, "-o", "nonsense"]).run().failure();
    assert!(refused.contains("nonsense"), "{refused}");
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    feedrail(["unmount", &at]).run().failure();
}

//! Claims on files and block devices: a target has exclusive use of each medium that it writes.
//!
//! A regular file is locked with `flock`: exclusively if hosts may write it, otherwise shared, so
//! that no other process that locks it can change it. A block device that hosts may write is opened
//! with `O_EXCL`, which the kernel refuses while the device is mounted or part of another device.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::FilePlace;
use super::place::FoundFile;

/// Attempts at a lock whose holder has exited, [`PAUSE`] apart (10 s in all). The kernel keeps the
/// lock until the process's last call on the file returns, which may be a long write.
const TRIES: u32 = 1000;
const PAUSE: Duration = Duration::from_millis(10);

/// Attempts, [`PAUSE`] apart (1 s in all), at a lock whose holder is not listed in `/proc/locks`:
/// it may just have been released, or belong to another machine on a network file system.
const TRIES_WITHOUT_HOLDER: u32 = 100;

/// Attempts at a block device that is in use, [`PAUSE`] apart: 5 s with direct I/O, then 5 s
/// without.
const TRIES_OF_DEVICE: u32 = 500;

/// Identity of a file or block device: equal for all paths that lead to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileKey {
    device: u64,
    /// 0 for a block device, which its device number identifies.
    inode: u64,
}

impl FileKey {
    /// Identity of the file at a place; `None` if it cannot be found.
    pub(crate) fn of_place(place: FilePlace<'_>) -> Option<Self> {
        Some(Self::of(&place.find().ok()?.metadata().ok()?))
    }

    /// Identity of an open file; `None` if it cannot be examined.
    pub(super) fn of_descriptor(file: &OwnedFd) -> Option<Self> {
        let file = File::from(file.try_clone().ok()?);
        Some(Self::of(&file.metadata().ok()?))
    }

    fn of(metadata: &Metadata) -> Self {
        match metadata.file_type().is_block_device() {
            true => Self { device: metadata.rdev(), inode: 0 },
            false => Self { device: metadata.dev(), inode: metadata.ino() },
        }
    }
}

/// Locks a regular file until it is closed or [`release`]d. Only warns if the file system has no
/// locks.
///
/// # Errors
/// A description of the process that holds the lock, for [`super::open_error::OpenError::Busy`].
pub(super) fn lock(file: &File, path: &Path, writable: bool) -> Result<(), String> {
    let wanted = match writable {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    };
    let mut without_holder = 0;
    for _ in 0..TRIES {
        match rustix::fs::flock(file, wanted) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => match LockHolder::of_lock(file) {
                Some(owner) if owner.has_ended() => pause(),
                Some(owner) => return Err(owner.to_string()),
                None if without_holder == TRIES_WITHOUT_HOLDER => {
                    return Err("another process".into());
                }
                None => {
                    without_holder += 1;
                    pause();
                }
            },
            Err(Errno::INTR) => {}
            Err(error) if writable => {
                tracing::warn!(
                    path = %path.display(), %error,
                    "cannot be locked: make sure that nothing else writes to it"
                );
                return Ok(());
            }
            Err(_) => return Ok(()),
        }
    }
    Err("a process that has ended, whose last write is still under way".into())
}

/// Locks the file behind a loop device, so that no target serves the file while another serves the
/// device. Returns `None` for other devices. The lock lasts until the returned file is closed.
///
/// # Errors
/// A description of the process that holds the lock.
pub(super) fn lock_backing_file(device: &File, writable: bool) -> Result<Option<File>, String> {
    let Some(path) = backing_file(device) else { return Ok(None) };
    let found = FilePlace::named(&path).find();
    let is_file = |found: &FoundFile| found.metadata().is_ok_and(|of| of.is_file());
    let Some(found) = found.ok().filter(is_file) else { return Ok(None) };
    let Ok(file) = found.open(false, 0) else { return Ok(None) };
    lock(&file, &path, writable)?;
    Ok(Some(file))
}

/// File behind a loop device or a partition of one, as sysfs reports it.
fn backing_file(device: &File) -> Option<PathBuf> {
    let number = device.metadata().ok()?.rdev();
    let folder = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    let of_disk = ["loop/backing_file", "../loop/backing_file"];
    let path = of_disk.iter().find_map(|name| fs::read(Path::new(&folder).join(name)).ok())?;
    Some(OsString::from_vec(path.strip_suffix(b"\n").unwrap_or(&path).to_vec()).into())
}

/// Opens a block device exclusively, for writing. Waits while the device is busy, unless a mount or
/// another device uses it: an exited process keeps it until its last call returns, and the kernel
/// does not report which process that is.
///
/// # Errors
/// The device stays in use, or cannot be opened.
pub(super) fn open_alone(device: &FoundFile, flags: i32) -> io::Result<File> {
    let busy = |error: &io::Error| error.raw_os_error() == Some(libc::EBUSY);
    for _ in 1..TRIES_OF_DEVICE {
        match device.open(true, flags | libc::O_EXCL) {
            Err(error) if busy(&error) && !has_lasting_user(device) => pause(),
            opened => return opened,
        }
    }
    device.open(true, flags | libc::O_EXCL)
}

/// Whether a block device is mounted or part of another device.
fn has_lasting_user(device: &FoundFile) -> bool {
    let Ok(number) = device.metadata().map(|metadata| metadata.rdev()) else { return false };
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let (major, minor) = (libc::major(number), libc::minor(number));
    let holders = fs::read_dir(format!("/sys/dev/block/{major}:{minor}/holders"));
    let is_held = holders.is_ok_and(|mut holders| holders.next().is_some());
    is_held || mount_point(&mounts, number).is_some()
}

/// Lock of a file, held while any of its backends exists.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) file: Arc<OwnedFd>,
    /// Locked file behind a loop device. Closing it ends the lock.
    pub(super) backing: Option<File>,
}

impl Drop for Claim {
    /// Releases the lock explicitly, since an io_uring that is being torn down may keep the file
    /// open. Fails only where there is no lock.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// Description of the mount or other user that keeps a block device from being opened exclusively.
pub(super) fn user_of_device(device: &File) -> String {
    let number = device.metadata().map(|metadata| metadata.rdev()).unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    match mount_point(&mounts, number) {
        Some(place) => format!("the file system mounted at {place}"),
        None => "something else (a mounted partition, RAID, LVM, or another process)".into(),
    }
}

/// Mount point of a device in the lines of `mountinfo`.
fn mount_point(mounts: &str, device: u64) -> Option<&str> {
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mut lines = mounts.lines().map(|line| line.split(' '));
    lines.find_map(|mut fields| (fields.nth(2)? == number).then(|| fields.nth(1))?)
}

#[expect(clippy::disallowed_methods, reason = "the target starts, and serves nothing yet")]
pub(super) fn pause() {
    std::thread::sleep(PAUSE);
}

/// Process that holds a lock, for error messages.
struct LockHolder {
    /// 0 if the process is in another PID namespace.
    pid: u32,
    command: Option<String>,
}

impl LockHolder {
    fn of_lock(file: &File) -> Option<Self> {
        let metadata = file.metadata().ok()?;
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let pid = lock_holder(&locks, metadata.dev(), metadata.ino())?;
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).ok();
        Some(Self { pid, command: command.map(|name| name.trim().to_owned()) })
    }

    /// Whether the process has exited, even if it is still a zombie.
    fn has_ended(&self) -> bool {
        if self.pid == 0 {
            return false;
        }
        match fs::read_to_string(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => is_zombie(&stat),
            // The process exited while its file was read.
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.pid, &self.command) {
            (0, _) => f.write_str("a process of another container"),
            (pid, Some(command)) => write!(f, "process {pid} ({command})"),
            (pid, None) => write!(f, "process {pid}"),
        }
    }
}

/// Whether a line of `/proc/PID/stat` describes a process that has exited.
fn is_zombie(stat: &str) -> bool {
    // The command name is in parentheses and may itself contain parentheses and spaces.
    stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with(['Z', 'X']))
}

/// Process that holds a `flock` on a file, found in the lines of `/proc/locks`.
fn lock_holder(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let place = format!("{:02x}:{:02x}:{inode}", libc::major(device), libc::minor(device));
    locks.lines().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        // A line with an arrow describes a waiting process.
        let of_file = fields.next()? == "FLOCK" && fields.nth(3)? == place;
        of_file.then(|| line.split_whitespace().nth(4)?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn ended_processes_differ_from_sleeping_ones() {
        assert!(is_zombie("12 (feedrail-target) Z 1 12 12 0 -1"));
        assert!(is_zombie("12 (a) S) Z 1 12 12 0 -1"));
        assert!(!is_zombie("12 (Z) Z) S 1 12 12 0 -1"));
    }

    #[test]
    fn a_lock_released_meanwhile_is_obtained() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let open = || File::create(&path).unwrap();
        let (other, done) = (open(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let _ = rustix::fs::flock(&other, FlockOperation::LockExclusive);
                    let _ = rustix::fs::flock(&other, FlockOperation::Unlock);
                }
            });
            let results: Vec<_> = (0..1000).map(|_| lock(&open(), &path, true)).collect();
            done.store(true, Ordering::Relaxed);
            // This process holds the lock or got it, so the holder is always known.
            assert!(!results.contains(&Err("another process".into())));
        });
    }

    #[test]
    fn holders_are_found_in_the_kernels_lists() {
        let locks = "1: POSIX  ADVISORY  WRITE 7 fe:00:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 11723 fe:00:42 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 8 fe:00:43 0 EOF\n";
        let device = libc::makedev(0xfe, 0);
        assert_eq!(lock_holder(locks, device, 42), Some(11723));
        assert_eq!(lock_holder(locks, device, 43), None);
        assert_eq!(lock_holder(locks, libc::makedev(8, 1), 42), None);

        let mounts = "36 35 8:17 / /mnt/data rw,noatime master:1 - ext4 /dev/sdb1 rw\n";
        assert_eq!(mount_point(mounts, libc::makedev(8, 17)), Some("/mnt/data"));
        assert_eq!(mount_point(mounts, libc::makedev(8, 1)), None);
    }
}

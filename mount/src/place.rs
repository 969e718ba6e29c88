//! Places where file systems are mounted: how they end, and how far the kernel reads ahead.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// How a file system is unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Only if nobody uses it.
    Idle,
    /// Even if it is used: it is out of sight immediately, and ends when nobody uses it any longer.
    Lazy,
    /// Even if it is used, and immediately: requests in progress fail, and open files are
    /// of no use.
    Force,
}

/// Unmounts what is mounted at a place: as root, or with `fusermount3`.
///
/// # Errors
/// The refusal of the kernel or of `fusermount3`.
pub fn unmount(place: &Path, mode: UnmountMode) -> io::Result<()> {
    let flags = match mode {
        UnmountMode::Idle => UnmountFlags::NOFOLLOW,
        UnmountMode::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        // What is in use after its requests have failed is out of sight at least.
        UnmountMode::Force => UnmountFlags::NOFOLLOW | UnmountFlags::FORCE | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(place, flags) {
        Err(Errno::PERM) => with_fusermount(place, mode),
        result => Ok(result?),
    }
}

fn with_fusermount(place: &Path, mode: UnmountMode) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if mode != UnmountMode::Idle {
        command.arg("-z");
    }
    let output = command.arg("--").arg(place).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// Sets how far the kernel reads ahead in the file system at a place, if it may be set.
pub(crate) fn set_read_ahead(place: &Path, bytes: u64) {
    let set = || {
        let device = fs::symlink_metadata(place)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
        fs::write(path, (bytes >> 10).to_string())
    };
    if let Err(error) = set() {
        tracing::info!(%error, "the kernel reads 128 KiB ahead, since that cannot be changed");
    }
}

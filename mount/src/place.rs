//! Places where file systems are mounted: how they end, and how far the kernel reads ahead.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

/// Type of file systems of this crate, as the kernel shows it.
const TYPE: &[u8] = b"fuse.feedrail";

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

/// Unmounts a file system of this crate at a place: as root, or with `fusermount3`.
///
/// # Errors
/// Nothing is mounted there, or another kind of file system; or the refusal of the kernel or of
/// `fusermount3`.
pub fn unmount(place: &Path, mode: UnmountMode) -> io::Result<()> {
    let mounts = fs::read("/proc/self/mountinfo")?;
    // One whose daemon is gone cannot be resolved.
    let path = fs::canonicalize(place).or_else(|_| std::path::absolute(place))?;
    match type_at(&mounts, &path) {
        Some(TYPE) => {}
        Some(_) => return Err(io::Error::other("a file system of another kind is mounted there")),
        None => return Err(io::Error::other("nothing is mounted there")),
    }
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

/// Type of the file system that is mounted last at a path, by the text of `/proc/self/mountinfo`.
fn type_at<'a>(mounts: &'a [u8], path: &Path) -> Option<&'a [u8]> {
    let lines = mounts.split(|&byte| byte == b'\n');
    let mut at_path = lines.filter_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let point = fields.nth(4)?;
        let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
        (unescaped(point) == path.as_os_str().as_bytes()).then_some(kind)
    });
    at_path.next_back()
}

/// A path of `/proc/self/mountinfo`, where a space, a tab, a newline and a backslash are octal.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    bytes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_mount_at_a_path_counts() {
        let mounts = b"29 1 254:0 / / rw - ext4 /dev/root rw\n\
            40 29 0:40 / /mnt/a\\040b rw,nosuid shared:1 - ext4 /dev/sda rw\n\
            41 40 0:41 / /mnt/a\\040b ro - fuse.feedrail nvmf://x rw\n\
            42 29 0:42 / /mnt/a ro - tmpfs none rw\n";
        assert_eq!(type_at(mounts, Path::new("/mnt/a b")), Some(TYPE));
        assert_eq!(type_at(mounts, Path::new("/mnt/a")), Some(&b"tmpfs"[..]));
        assert_eq!(type_at(mounts, Path::new("/mnt")), None);
        assert_eq!(type_at(b"", Path::new("/mnt")), None);
    }
}

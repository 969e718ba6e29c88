//! Credentials of the process at the other end of a Unix socket.
#![expect(unsafe_code, reason = "asks the system for credentials")]

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The overflow user or group id, which stands for ids that a user namespace does not map, if
/// `/proc` cannot be read.
const OVERFLOW_ID: u32 = 65_534;
/// Length of the map of a user namespace that maps all ids, as the initial one does.
const ALL_IDS: u32 = u32::MAX;

/// The process at the other end of a Unix socket, as of its `listen` or `connect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalPeer {
    /// Process id; zero if the process is in another PID namespace.
    pub pid: i32,
    /// Effective user id of the process.
    pub uid: u32,
    /// Effective group id of the process.
    pub gid: u32,
}

impl LocalPeer {
    /// Reads the credentials that the kernel recorded (`SO_PEERCRED`), which the peer cannot forge.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).expect("a small type");
        // SAFETY: the place is as long as the length says, and any value in it is valid.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut credentials).cast(),
                &raw mut length,
            )
        };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let libc::ucred { pid, uid, gid } = credentials;
        Ok(Self { pid, uid, gid })
    }

    /// Whether it runs as our effective user or as root. The overflow id of a user namespace, which
    /// stands for all unmapped users, never counts.
    pub fn is_us_or_root(self) -> bool {
        let ours = rustix::process::geteuid().as_raw();
        (self.uid == ours || self.uid == 0)
            && !is_unmapped(self.uid, "/proc/sys/kernel/overflowuid", "/proc/self/uid_map")
    }
}

/// Whether a group id is the overflow id, which stands for all groups that our user namespace does
/// not map.
pub(crate) fn is_unmapped_group(gid: u32) -> bool {
    is_unmapped(gid, "/proc/sys/kernel/overflowgid", "/proc/self/gid_map")
}

fn is_unmapped(id: u32, overflow: &str, map: &str) -> bool {
    let overflow = fs::read_to_string(overflow).ok().and_then(|text| text.trim().parse().ok());
    id == overflow.unwrap_or(OVERFLOW_ID)
        && !fs::read_to_string(map).is_ok_and(|map| knows_all(&map))
}

/// Whether the map of a user namespace (`uid_map`, `gid_map`) contains all ids.
fn knows_all(map: &str) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (first, count) = (numbers.next(), numbers.nth(1));
        matches!((first, count), (Some(Ok(0)), Some(Ok(ALL_IDS))))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_id_is_somebodys_only_where_all_ids_are_known() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let overflow = file("overflowuid", "5678\n");
        let first = file("first", "         0          0 4294967295\n");
        let container = file("container", "0 100000 65536\n");
        let own = file("own", "      1000       1000          1\n");
        let empty = file("empty", "");
        for (map, unmapped) in [(&first, false), (&container, true), (&own, true), (&empty, true)] {
            assert_eq!(is_unmapped(5678, &overflow, map), unmapped, "{map}");
            assert!(!is_unmapped(5679, &overflow, map) && !is_unmapped(0, &overflow, map));
        }
        assert!(is_unmapped(65_534, "/nowhere", "/nowhere"));
        assert!(!is_unmapped(1000, "/nowhere", "/nowhere"));
    }
}

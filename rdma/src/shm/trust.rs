//! The rule which processes of this machine may share memory with us.
#![expect(unsafe_code, reason = "asks the system for groups")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::local_peer::{LocalPeer, is_unmapped_group};

/// Maximum number of supplementary groups that Linux allows, `NGROUPS_MAX`.
const MAX_GROUPS: usize = 1 << 16;
/// Maximum size of a group database entry to read: some groups have tens of thousands of members.
const MAX_ENTRY_BYTES: usize = 16 << 20;

/// A Unix group whose members may share memory with us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharingGroup {
    gid: u32,
}

/// The reason why a group name could not be resolved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SharingGroupError {
    /// The machine has no group of this name.
    #[error("there is no group {0:?} on this machine: `getent group` lists those that are")]
    Unknown(String),
    /// The lookup of the group failed.
    #[error("looking up group {name:?}: {error}")]
    Failed {
        /// The name that was looked up.
        name: String,
        /// The error of the system.
        error: io::Error,
    },
}

impl SharingGroup {
    /// Looks up a group by name.
    ///
    /// # Errors
    /// There is no group of this name, or the lookup failed.
    pub fn named(name: &str) -> Result<Self, SharingGroupError> {
        let unknown = || SharingGroupError::Unknown(name.to_owned());
        let name_z = CString::new(name).map_err(|_| unknown())?;
        let mut room: Vec<libc::c_char> = vec![0; 4096];
        loop {
            // SAFETY: a plain structure of numbers and pointers, which may be null.
            let mut entry: libc::group = unsafe { std::mem::zeroed() };
            let mut found = std::ptr::null_mut();
            // SAFETY: the name ends with a zero, and the room is as long as the call is told.
            let error = unsafe {
                libc::getgrnam_r(
                    name_z.as_ptr(),
                    &raw mut entry,
                    room.as_mut_ptr(),
                    room.len(),
                    &raw mut found,
                )
            };
            match error {
                0 if found.is_null() => return Err(unknown()),
                0 => return Ok(Self { gid: entry.gr_gid }),
                libc::EINTR => {}
                libc::ERANGE if room.len() < MAX_ENTRY_BYTES => room.resize(2 * room.len(), 0),
                // Error codes of some systems for a group that does not exist.
                libc::ENOENT | libc::ESRCH => return Err(unknown()),
                error => {
                    let error = io::Error::from_raw_os_error(error);
                    return Err(SharingGroupError::Failed { name: name.to_owned(), error });
                }
            }
        }
    }

    /// The group with this id.
    pub const fn with_id(gid: u32) -> Self {
        Self { gid }
    }

    /// The numeric group id.
    pub const fn id(self) -> u32 {
        self.gid
    }
}

/// The trusted processes: those of our user, of root, and of a group if one is set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerTrust {
    pub(super) group: Option<SharingGroup>,
}

impl PeerTrust {
    /// Checks whether the process at the other end of a socket is trusted, by the credentials of
    /// its `listen` or `connect`.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] if it is not, else the error of the system call.
    pub(super) fn check(self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let theirs = LocalPeer::of(socket)?;
        if theirs.is_us_or_root() {
            return Ok(());
        }
        if let Some(SharingGroup { gid }) = self.group
            && !is_unmapped_group(gid)
            && (theirs.gid == gid || supplementary_groups(socket)?.contains(&gid))
        {
            return Ok(());
        }
        let (LocalPeer { pid, uid, .. }, ours) = (theirs, rustix::process::geteuid().as_raw());
        let outside = self
            .group
            .map_or(String::new(), |SharingGroup { gid }| format!(", and is not in group {gid}"));
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("process {pid} runs as user {uid}, not as user {ours} or root{outside}"),
        ))
    }
}

/// Supplementary groups of the process at the other end, as of its `listen` or `connect`.
fn supplementary_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let bytes = groups.len() * size_of::<u32>();
        let mut length = libc::socklen_t::try_from(bytes).expect("there are not so many groups");
        // SAFETY: the place is as long as the length says, and any value in it is valid.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            groups.truncate(length as usize / size_of::<u32>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        let wanted = length as usize / size_of::<u32>();
        let is_short = error.raw_os_error() == Some(libc::ERANGE);
        if !is_short || wanted <= groups.len() || wanted > MAX_GROUPS {
            return Err(error);
        }
        groups.resize(wanted, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name() {
        assert_eq!(SharingGroup::named("root").unwrap().id(), 0);
        for name in ["no-such-group-here", "", "a\0b"] {
            let error = SharingGroup::named(name).unwrap_err();
            assert!(matches!(error, SharingGroupError::Unknown(_)), "{error}");
            let text = format!("there is no group {name:?} on this machine");
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }

    #[test]
    fn the_groups_of_a_peer_are_ours_on_our_own_socket() {
        use std::os::fd::AsFd;
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut ours: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        let mut theirs = supplementary_groups(socket.as_fd()).unwrap();
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(theirs, ours);
    }

    /// Connects as another user in a group; returns what the listener's trust says.
    fn judged(trust: PeerTrust, gid: u32, groups: &[u32]) -> io::Result<()> {
        use std::os::fd::AsFd;
        use std::os::unix::net::{UnixListener, UnixStream};
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let open = |path: &std::path::Path, mode| {
            std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))
        };
        open(folder.path(), 0o755).and_then(|()| open(&path, 0o777)).unwrap();
        let groups = groups.to_vec();
        let connected = std::thread::spawn(move || {
            // SAFETY: the calls read the list, and change the credentials of this thread only.
            let changed = unsafe {
                libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) == 0
                    && libc::syscall(libc::SYS_setresgid, gid, gid, gid) == 0
                    && libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0
            };
            assert!(changed, "{}", io::Error::last_os_error());
            UnixStream::connect(path).unwrap()
        });
        let _peer = connected.join().unwrap();
        trust.check(listener.accept().unwrap().0.as_fd())
    }

    #[test]
    fn users_of_the_group_are_trusted() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("left out: only root can connect as somebody else");
            return;
        }
        let group = PeerTrust { group: Some(SharingGroup::with_id(4321)) };
        let many: Vec<u32> = (5000..5200).chain([4321]).collect();
        for (gid, groups) in [(4321, &[][..]), (65534, &[1, 4321]), (65534, &many)] {
            judged(group, gid, groups).unwrap();
            let error = judged(PeerTrust::default(), gid, groups).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            assert!(error.to_string().ends_with("not as user 0 or root"), "{error}");
        }
        let error = judged(group, 65534, &[4320, 4322]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let text = "runs as user 65534, not as user 0 or root, and is not in group 4321";
        assert!(error.to_string().ends_with(text), "{error}");
    }
}

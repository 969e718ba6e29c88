//! Listening socket with the permissions of its role.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rdma::LocalPeer;

use super::role::SocketRole;
use super::socket_place::{SocketError, SocketPlace};

/// Listening socket. Dropping it removes the socket file, unless another process has replaced that.
#[derive(Debug)]
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
    role: SocketRole,
}

impl Socket {
    pub(super) fn listen(path: &Path, role: SocketRole) -> Result<Self, SocketError> {
        let place = SocketPlace::check(path)?;
        // The socket file of a target that no longer runs is replaced.
        if place.is_taken() && UnixStream::connect(path).is_ok() {
            return Err(SocketError::InUse(path.to_owned()));
        }
        Self::bind(place.path(), role)
            .map_err(|error| SocketError::Listen { path: path.to_owned(), error })
    }

    /// Binds the socket under a temporary name, and renames it to its path once its permissions are
    /// set, so that no other user can connect before.
    fn bind(path: &Path, role: SocketRole) -> io::Result<Self> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}", std::process::id()));
        let first = PathBuf::from(name);
        // A process that had the same PID may have left the file.
        let _ = std::fs::remove_file(&first);
        let listener = UnixListener::bind(&first)?;
        let named = Self::name(&listener, &first, path, role);
        named.inspect_err(|_| {
            let _ = std::fs::remove_file(&first);
        })?;
        let inode = std::fs::symlink_metadata(path)?.ino();
        Ok(Self { listener, path: path.to_owned(), inode, role })
    }

    fn name(
        listener: &UnixListener,
        first: &Path,
        path: &Path,
        role: SocketRole,
    ) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        std::fs::set_permissions(first, std::fs::Permissions::from_mode(role.permissions()))?;
        std::fs::rename(first, path)
    }

    pub(super) fn role(&self) -> SocketRole {
        self.role
    }

    /// Accepts the next client. Returns `None` if none is waiting, or if its user has no place here
    /// and it is refused.
    pub(super) fn accept(&self) -> io::Result<Option<(UnixStream, LocalPeer)>> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if is_passing(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let peer = LocalPeer::of(stream.as_fd())?;
        if self.role.admits(peer) {
            return Ok(Some((stream, peer)));
        }
        tracing::warn!(uid = peer.uid, pid = peer.pid, "a client of another user is refused");
        Ok(None)
    }
}

/// Whether no client is waiting, or the client has disconnected already.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted)
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let is_ours = |metadata: std::fs::Metadata| metadata.ino() == self.inode;
        if std::fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

//! Checks of the path of a management socket.

use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Longest path of a Unix socket in bytes (`sun_path` without the terminating zero).
const SOCKET_PATH_BYTES: usize = 107;
/// Bytes that the socket's temporary name is longer: a dot and the PID, which is below 4,194,304.
const FIRST_NAME_BYTES: usize = 8;

/// Reason that a management socket cannot be created; its message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A process listens on the socket.
    #[error("management: {}: another process listens there; give each target a socket of its own", .0.display())]
    InUse(PathBuf),
    /// The path or the temporary name is too long for `sun_path`.
    #[error("management: {}: has {length} bytes, and a socket takes {most} at most; give a shorter path", path.display())]
    TooLong {
        /// Path of the socket.
        path: PathBuf,
        /// Length of the path in bytes.
        length: usize,
        /// Most bytes that it may have.
        most: usize,
    },
    /// The folder of the socket does not exist, or nothing can be created in it.
    #[error(
        "management: no socket can be made in {}: {error}; make the folder, with the target's user as its owner \
         (RuntimeDirectory= of systemd makes one in /run)", folder.display()
    )]
    Folder {
        /// Folder that the path is in.
        folder: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
    /// A file that is not a socket has the path.
    #[error("management: {}: exists and is not a socket; give another path", .0.display())]
    NoSocket(PathBuf),
    /// A system call failed.
    #[error("management: cannot listen on {}: {error}", path.display())]
    Listen {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
}

/// Path that a socket can be bound to: short enough, in a writable folder, and free or of a socket.
#[derive(Debug)]
pub(crate) struct SocketPlace {
    path: PathBuf,
    /// Whether a socket file has the path, of a running or an ended process.
    is_taken: bool,
}

impl SocketPlace {
    /// Checks a path, without creating anything.
    ///
    /// # Errors
    pub(crate) fn check(path: &Path) -> Result<Self, SocketError> {
        let length = path.as_os_str().len();
        let most = SOCKET_PATH_BYTES - FIRST_NAME_BYTES;
        if length > most {
            return Err(SocketError::TooLong { path: path.to_owned(), length, most });
        }
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let usable = std::fs::metadata(folder).and_then(|metadata| match metadata.is_dir() {
            true => Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?),
            false => Err(io::ErrorKind::NotADirectory.into()),
        });
        usable.map_err(|error| SocketError::Folder { folder: folder.to_owned(), error })?;
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.file_type().is_socket() => {
                Err(SocketError::NoSocket(path.to_owned()))
            }
            metadata => Ok(Self { path: path.to_owned(), is_taken: metadata.is_ok() }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a socket file has the path.
    pub(super) fn is_taken(&self) -> bool {
        self.is_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_that_is_found_can_be_bound_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let room = SOCKET_PATH_BYTES - FIRST_NAME_BYTES - folder.path().as_os_str().len() - 1;
        for (length, fits) in [(1, true), (room, true), (room + 1, false)] {
            let path = folder.path().join("s".repeat(length));
            let found = SocketPlace::check(&path);
            assert_eq!(found.is_ok(), fits, "{length}: {found:?}");
            // As the process with the highest number would.
            let first = format!("{}.4194303", path.display());
            assert!(!fits || std::os::unix::net::UnixListener::bind(first).is_ok());
        }
    }

    #[test]
    fn what_is_no_place_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, "").expect("written");
        for (path, part) in [
            (file.clone(), "is not a socket"),
            (folder.path().to_owned(), "is not a socket"),
            (folder.path().join("none/socket"), "No such file"),
            (file.join("socket"), "not a directory"),
        ] {
            let error = SocketPlace::check(&path).expect_err("no place").to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

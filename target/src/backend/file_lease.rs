//! A read lease on a file: others open it for writing, or cut it, only when it was given back.
#![expect(unsafe_code, reason = "leases have no other interface")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

/// Of `fcntl(2)`; the library lacks it.
const F_SETSIG: c_int = 10;

/// A file that may be leased (`fcntl(2)`, `F_SETLEASE`). The kernel takes a lease by force that is
/// not given back within `/proc/sys/fs/lease-break-time`, 45 s by default.
#[derive(Debug)]
pub(super) struct FileLease {
    file: Arc<OwnedFd>,
    held: AtomicBool,
}

impl FileLease {
    /// No lease yet. The file was opened for reading only.
    pub(super) fn new(file: Arc<OwnedFd>) -> Self {
        Self { file, held: AtomicBool::new(false) }
    }

    /// Takes the lease, if it is not held; false if the file is open for writing somewhere.
    ///
    /// # Errors
    /// The file system has no leases, or the file is another user's.
    pub(super) fn take(&self) -> io::Result<bool> {
        if self.held.load(Ordering::Relaxed) {
            return Ok(true);
        }
        // The kernel tells the holder by a signal that somebody waits. By default that is SIGIO,
        // which would end the process; SIGURG does nothing.
        self.control(F_SETSIG, libc::SIGURG)?;
        match self.control(libc::F_SETLEASE, libc::F_RDLCK) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        self.held.store(true, Ordering::Relaxed);
        // Nobody needs the signal.
        self.control(libc::F_SETOWN, 0)?;
        Ok(true)
    }

    /// Whether the lease is held, and somebody waits for its end.
    pub(super) fn is_breaking(&self) -> bool {
        let is_whole = || self.control(libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_RDLCK);
        self.held.load(Ordering::Relaxed) && !is_whole()
    }

    /// Gives the lease back.
    pub(super) fn release(&self) {
        if self.held.swap(false, Ordering::Relaxed) {
            // It may have been taken by force.
            let _ = self.control(libc::F_SETLEASE, libc::F_UNLCK);
        }
    }

    fn control(&self, command: c_int, argument: c_int) -> io::Result<c_int> {
        // SAFETY: these commands take a number, and no memory is involved.
        match unsafe { libc::fcntl(self.file.as_raw_fd(), command, argument) } {
            -1 => Err(io::Error::last_os_error()),
            result => Ok(result),
        }
    }
}

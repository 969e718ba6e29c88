//! Read leases on files: another process can open a leased file for writing, or truncate it, only
//! after the lease was given back.
#![expect(unsafe_code, reason = "leases have no other interface")]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::c_int;

/// Command of `fcntl(2)` that the `libc` crate lacks.
const F_SETSIG: c_int = 10;

/// Read lease of this process on a file (`fcntl(2)`, `F_SETLEASE`), held or not. The kernel breaks
/// a lease that is not given back within `/proc/sys/fs/lease-break-time` (45 s by default).
#[derive(Debug)]
pub(super) struct FileLease {
    file: Arc<OwnedFd>,
    held: AtomicBool,
}

impl FileLease {
    /// Creates the state for a file that is opened for reading only. The lease is not taken yet.
    pub(super) fn new(file: Arc<OwnedFd>) -> Self {
        Self { file, held: AtomicBool::new(false) }
    }

    /// Takes the lease unless it is held; returns false if some process has the file open for
    /// writing.
    ///
    /// # Errors
    /// The file system has no leases, or the file belongs to another user.
    pub(super) fn take(&self) -> io::Result<bool> {
        if self.held.load(Ordering::Relaxed) {
            return Ok(true);
        }
        // The kernel signals the holder when another process waits. The default, SIGIO, would end
        // the process; SIGURG is ignored.
        self.control(F_SETSIG, libc::SIGURG)?;
        match self.control(libc::F_SETLEASE, libc::F_RDLCK) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
        self.held.store(true, Ordering::Relaxed);
        // No process needs the signal.
        self.control(libc::F_SETOWN, 0)?;
        Ok(true)
    }

    /// Whether the lease is held and another process waits for it.
    pub(super) fn is_breaking(&self) -> bool {
        let is_whole = || self.control(libc::F_GETLEASE, 0).is_ok_and(|kind| kind == libc::F_RDLCK);
        self.held.load(Ordering::Relaxed) && !is_whole()
    }

    /// Gives back the lease, if it is held.
    pub(super) fn release(&self) {
        if self.held.swap(false, Ordering::Relaxed) {
            // Fails if the kernel has broken the lease.
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

//! `/dev/fuse`: requests come in, answers go out.
#![expect(unsafe_code, reason = "answers are written from registered memory, and an ioctl")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use zerocopy::IntoBytes;

use crate::protocol::OutHeader;

/// A descriptor of the device that belongs to a mount. An answer has to take the descriptor that
/// its request came by.
#[derive(Debug)]
pub(crate) struct FuseDevice(OwnedFd);

/// Result of a read of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// No request is waiting.
    Nothing,
    /// The file system is unmounted.
    Unmounted,
}

/// FUSE_DEV_IOC_CLONE, which makes a new descriptor of the device one of a mount.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

impl FuseDevice {
    /// Another handle of a descriptor, which no longer blocks.
    pub(crate) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = fd.try_clone_to_owned()?;
        rustix::fs::fcntl_setfl(&fd, rustix::fs::fcntl_getfl(&fd)? | OFlags::NONBLOCK)?;
        Ok(Self(fd))
    }

    /// A descriptor of its own for the same mount, so that requests do not share one list. Another
    /// handle of the same where the kernel refuses.
    pub(crate) fn another(&self) -> io::Result<Self> {
        Self::cloned(self.0.as_fd()).or_else(|_| Self::new(self.0.as_fd()))
    }

    fn cloned(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let new = File::options().read(true).write(true).open("/dev/fuse")?;
        // A descriptor is never negative.
        let number = fd.as_raw_fd().cast_unsigned();
        // SAFETY: the ioctl reads the number of a descriptor, and has no other effect than to add
        // the new one to the mount.
        unsafe { ioctl(&new, Setter::<CLONE, u32>::new(number))? };
        Self::new(new.as_fd())
    }

    /// Reads a request, if there is one.
    pub(crate) fn receive(&self, into: &mut [u8]) -> io::Result<Received> {
        match rustix::io::read(&self.0, into) {
            Ok(length) => Ok(Received::Request(length)),
            Err(Errno::AGAIN) => Ok(Received::Nothing),
            // The request was taken back while it was read.
            Err(Errno::NOENT | Errno::INTR) => Ok(Received::Request(0)),
            Err(Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => Ok(Received::Unmounted),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn fail(&self, unique: u64, error: Errno) {
        let header = OutHeader { length: 16, error: -error.raw_os_error(), unique };
        note(rustix::io::write(&self.0, header.as_bytes()).map(drop));
    }

    /// Answers with bytes of the file system's own.
    pub(crate) fn answer(&self, unique: u64, data: &[u8]) {
        let header = header(unique, data.len());
        let parts = [io::IoSlice::new(header.as_bytes()), io::IoSlice::new(data)];
        note(rustix::io::writev(&self.0, &parts).map(drop));
    }

    /// Answers with memory that a target may have access to, which no reference is made to.
    ///
    /// # Safety
    /// `length` bytes at `data` must be mapped and readable during the call.
    pub(crate) unsafe fn answer_raw(&self, unique: u64, data: *const u8, length: usize) {
        let header = header(unique, length);
        let part = |base: *const u8, length| libc::iovec {
            iov_base: base.cast_mut().cast(),
            iov_len: length,
        };
        let parts = [part(header.as_bytes().as_ptr(), size_of::<OutHeader>()), part(data, length)];
        // SAFETY: both parts are readable (the caller's promise), and only read.
        let written = unsafe { libc::writev(self.0.as_raw_fd(), parts.as_ptr(), 2) };
        if written < 0 {
            let error = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            note(Err(Errno::from_raw_os_error(error)));
        }
    }
}

impl AsFd for FuseDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn header(unique: u64, data_bytes: usize) -> OutHeader {
    // At most the bytes of a read and those of the header.
    let length = (size_of::<OutHeader>() + data_bytes) as u32;
    OutHeader { length, error: 0, unique }
}

/// A request may be gone by the time that it is answered.
fn note(written: Result<(), Errno>) {
    match written {
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => {}
        Err(error) => tracing::warn!(%error, "the kernel refused an answer"),
    }
}

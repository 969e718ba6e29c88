//! The system calls that backends ask for.

use std::os::fd::RawFd;

use super::operation::MemoryPart;

/// A system call on a file. It carries addresses: the [`super::Operation`] that it belongs to keeps
/// their memory lent until the call is over.
#[derive(Clone, Copy, Debug)]
pub enum SystemCall {
    /// `pread`.
    Read {
        /// From this file.
        file: FileRef,
        /// From this byte on.
        offset: u64,
        /// To here.
        part: MemoryPart,
    },
    /// `pwritev2`.
    Write {
        /// To this file.
        file: FileRef,
        /// From this byte on.
        offset: u64,
        /// From here.
        part: MemoryPart,
        /// With `RWF_DSYNC`.
        durable: bool,
    },
    /// `fdatasync`.
    Sync {
        /// Of this file.
        file: FileRef,
    },
    /// `fallocate`.
    Fallocate {
        /// Of this file.
        file: FileRef,
        /// `FALLOC_FL_*`.
        mode: i32,
        /// From this byte on.
        offset: u64,
        /// So many bytes.
        length: u64,
    },
}

/// An open file, and a number that no other file of the process ever had: descriptors are reused,
/// this is not, so a ring may register the file under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The descriptor.
    pub fd: RawFd,
    /// The number.
    pub id: FileId,
    /// The device that it is on.
    pub device: DeviceId,
    /// It was opened for direct I/O.
    pub direct: bool,
}

/// A device number, as `stat` gives it: of a block device its own, of a file that of its file
/// system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId(pub u64);

/// See [`FileRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

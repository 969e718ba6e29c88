//! The system calls that backends ask for.

use std::os::fd::RawFd;

use super::MappedPlace;
use super::operation::MemoryPart;

/// A system call on a file. It carries addresses: the [`super::Operation`] that it belongs to keeps
/// their memory lent until the call is over.
#[derive(Clone, Copy, Debug)]
pub enum SystemCall {
    /// `pread`: fills memory from a file.
    Read {
        /// The file that is read.
        file: FileRef,
        /// From this byte on.
        offset: u64,
        /// The memory that is filled.
        part: MemoryPart,
    },
    /// `pwritev2`: stores memory in a file.
    Write {
        /// The file that is written.
        file: FileRef,
        /// From this byte on.
        offset: u64,
        /// The memory that is stored.
        part: MemoryPart,
        /// With `RWF_DSYNC`: the bytes are on the medium when the call ends.
        durable: bool,
    },
    /// `fdatasync`: puts completed writes on the medium.
    Sync {
        /// The file that is synced.
        file: FileRef,
    },
    /// `fallocate`: makes a hole, or zeros a range.
    Fallocate {
        /// The file that is changed.
        file: FileRef,
        /// A set of `FALLOC_FL_*` bits.
        mode: i32,
        /// From this byte on.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
    },
}

/// A read of what the page cache has at this moment: a copy of what is mapped, else `preadv2` with
/// `RWF_NOWAIT`. It carries addresses like a [`SystemCall`].
#[derive(Clone, Copy, Debug)]
pub struct CachedRead {
    /// The file that is read, not opened for direct I/O.
    pub file: FileRef,
    /// From this byte on.
    pub offset: u64,
    /// The memory that is filled.
    pub part: MemoryPart,
    /// Where the bytes are in memory, if they are mapped and locked there.
    pub mapped: Option<MappedPlace>,
}

/// An open file, and a number that no other file of the process ever had: descriptors are reused,
/// this is not, so a ring may register the file under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// The descriptor, open for as long as the call runs.
    pub fd: RawFd,
    /// Its number, used once in the life of the process.
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

/// The number of an open file, which is never used again; see [`FileRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

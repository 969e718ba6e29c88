//! The system calls that backends ask for.

use std::os::fd::RawFd;

use super::MappedPlace;
use super::operation::MemoryPart;

/// System call on a file. It contains addresses: the [`super::Operation`] that it belongs to lends
/// the memory until the call returns.
#[derive(Clone, Copy, Debug)]
pub enum SystemCall {
    /// `pread`: fills memory from a file.
    Read {
        /// File that is read.
        file: FileRef,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Memory that the read fills.
        part: MemoryPart,
    },
    /// `pwritev2`: stores memory in a file.
    Write {
        /// File that is written.
        file: FileRef,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Memory that the write stores.
        part: MemoryPart,
        /// Whether to pass `RWF_DSYNC`, so that the bytes are on the medium when the call returns.
        durable: bool,
    },
    /// `fdatasync`: makes completed writes durable.
    Sync {
        /// File that is synced.
        file: FileRef,
    },
    /// `fallocate`: punches a hole or zeros a range.
    Fallocate {
        /// File that is changed.
        file: FileRef,
        /// A set of `FALLOC_FL_*` bits.
        mode: i32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
    },
}

/// Read of bytes in the page cache: a copy from the mapping, else `preadv2` with `RWF_NOWAIT`. It
/// contains addresses as a [`SystemCall`] does.
#[derive(Clone, Copy, Debug)]
pub struct CachedRead {
    /// File to read, opened without direct I/O.
    pub file: FileRef,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Memory that the read fills.
    pub part: MemoryPart,
    /// Place of the bytes in memory, if they are mapped and locked.
    pub mapped: Option<MappedPlace>,
}

/// An open file, and a number that is unique in the process: descriptors are reused, the number is
/// not, so a ring may register the file under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// Descriptor, open for as long as the call runs.
    pub fd: RawFd,
    /// Number of the file, never reused.
    pub id: FileId,
    /// Device of the file.
    pub device: DeviceId,
    /// Whether the file was opened for direct I/O.
    pub direct: bool,
}

/// Device number from `stat`: a block device's own, or that of a file's file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId(pub u64);

/// Number of an open file, never reused; see [`FileRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

//! System calls on files, which backends return as steps and the engine of a core executes.

use std::os::fd::RawFd;

use super::{MappedPlace, MemoryPart};

/// System call on a file. It contains addresses of memory that the [`super::Operation`] it belongs
/// to lends until the call returns.
#[derive(Clone, Copy, Debug)]
pub enum SystemCall {
    /// `pread`: fills memory from a file.
    Read {
        /// File to read from.
        file: FileRef,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Memory that the read fills.
        part: MemoryPart,
    },
    /// `pwritev2`: writes memory to a file.
    Write {
        /// File to write to.
        file: FileRef,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Memory that the write copies to the file.
        part: MemoryPart,
        /// Whether to pass `RWF_DSYNC`, so that the bytes are on the medium when the call returns.
        durable: bool,
    },
    /// `fdatasync`: makes completed writes durable.
    Sync {
        /// File whose writes become durable.
        file: FileRef,
    },
    /// `fallocate`: punches a hole or zeros a range.
    Fallocate {
        /// File whose range is changed.
        file: FileRef,
        /// Flags of `fallocate`, a set of `FALLOC_FL_*` bits.
        mode: i32,
        /// Offset in the file, in bytes.
        offset: u64,
        /// Length of the range in bytes.
        length: u64,
    },
}

/// Read of bytes that are in the page cache: a copy from the file's mapping, or `preadv2` with
/// `RWF_NOWAIT`. It contains addresses as a [`SystemCall`] does.
#[derive(Clone, Copy, Debug)]
pub struct CachedRead {
    /// File to read, opened without direct I/O.
    pub file: FileRef,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Memory that the read fills.
    pub part: MemoryPart,
    /// Bytes in the file's mapping, if all are locked in memory; `None` for `preadv2`.
    pub mapped: Option<MappedPlace>,
}

/// An open file with a number that is unique in the process. A ring registers the file under that
/// number, since a descriptor is reused after `close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileRef {
    /// Descriptor, open for as long as the call runs.
    pub fd: RawFd,
    /// Number of the open file.
    pub id: FileId,
    /// Device that stores the file.
    pub device: DeviceId,
    /// Whether the file was opened for direct I/O.
    pub direct: bool,
}

/// Device number from `stat`: a block device's own (`st_rdev`), or that of a file's file system
/// (`st_dev`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId(pub u64);

/// Number of an open file, never reused; see [`FileRef`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileId(pub u64);

//! Reasons that a medium cannot be opened.

use std::io;
use std::path::PathBuf;

use super::open_hint::open_hint;

/// Reason that a medium cannot be exported; each message names the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A system call failed; the message adds a hint for the common causes.
    #[error("{}: {error}{}", path.display(), open_hint(error))]
    Io {
        /// File or device that failed.
        path: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
    /// The path leads to a directory, but a file is configured.
    #[error("{}: is a directory: name a file in it, or export it as a directory", path.display())]
    Directory {
        /// Path of the directory.
        path: PathBuf,
    },
    /// The path does not lead to a file of the configured type.
    #[error("{}: is not a {wanted}", path.display())]
    WrongType {
        /// Path of the file.
        path: PathBuf,
        /// Type that the configuration requires: `regular file` or `block device`.
        wanted: &'static str,
    },
    /// Another process or mount may write the file or device, or it is in use and hosts are to
    /// write it.
    #[error(
        "{}: is in use by {user}: a file that is written has one user; end that, or export a copy",
        path.display()
    )]
    Busy {
        /// File or device in use.
        path: PathBuf,
        /// Process or mount that uses it, as far as `/proc` shows it.
        user: String,
    },
    /// The file or device has zero bytes.
    #[error("{}: is empty: a namespace needs at least one byte", path.display())]
    Empty {
        /// Empty file or device.
        path: PathBuf,
    },
    /// A write to the last block would make the file longer.
    #[error(
        "{}: has {bytes} bytes, and a writable namespace needs a multiple of its {lba_bytes}-byte \
         blocks: `truncate -s {rounded} {}` makes it so", path.display(), path.display()
    )]
    PartialBlock {
        /// File that was to be writable.
        path: PathBuf,
        /// Length of the file in bytes.
        bytes: u64,
        /// Logical block size of the namespace in bytes.
        lba_bytes: u64,
        /// Next larger multiple of the block size, in bytes.
        rounded: u64,
    },
    /// The configured logical blocks are smaller than those of the device.
    #[error(
        "{}: the device has blocks of {device_bytes} bytes: give its namespace at least that block size",
        path.display()
    )]
    SmallBlocks {
        /// Block device with the larger blocks.
        path: PathBuf,
        /// Block size of the device in bytes.
        device_bytes: u32,
    },
    /// The size of a null or memory namespace is not a whole number of blocks.
    #[error("a size of {bytes} bytes is not a multiple of the {lba_bytes}-byte blocks")]
    Size {
        /// Configured size in bytes.
        bytes: u64,
        /// Logical block size of the namespace in bytes.
        lba_bytes: u64,
    },
    /// The machine, or the control group of the target, has no memory for a memory namespace.
    #[error(
        "no memory for a namespace of {bytes} bytes (there are {left_bytes} for all of them): make its size_bytes \
         smaller"
    )]
    NoMemory {
        /// Configured size in bytes.
        bytes: u64,
        /// Bytes that all memory namespaces together may still take.
        left_bytes: u64,
    },
}

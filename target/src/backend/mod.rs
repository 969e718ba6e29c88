//! Backends: access to the media behind namespaces (files, block devices, memory, null) as bytes at
//! offsets, without NVMe.
//!
//! A backend makes no system calls for an operation itself: [`Backend::start`] and
//! [`Backend::resume`] return the next step, and the `Storage` of a core executes it. So the same
//! backend runs on io_uring and in the simulator.

mod block;
mod cache_room;
mod claim;
mod closing_medium;
mod content;
pub(crate) mod decorator;
pub(crate) mod file;
mod file_lease;
mod health;
mod mapped_file;
pub(crate) mod memory;
mod memory_room;
mod null;
pub(crate) mod open;
pub(crate) mod open_error;
mod open_hint;
mod operation;
mod page_lock;
mod place;
mod range_lock;
mod resident_copy;
mod source;
mod system_call;
mod write_unit;

#[cfg(test)]
mod tests;

use std::{fmt, io};

use rdma::Time;

pub(crate) use self::cache_room::CacheRoom;
pub use self::cache_room::CacheStats;
pub(crate) use self::claim::FileKey;
pub(crate) use self::closing_medium::ClosingMedium;
pub(crate) use self::content::Content;
pub(crate) use self::file::FileBackend;
pub(crate) use self::health::Health;
pub(crate) use self::mapped_file::MappedFile;
pub use self::mapped_file::MappedPlace;
pub(crate) use self::memory::MemoryBackend;
pub(crate) use self::memory_room::MemoryRoom;
pub(crate) use self::null::NullBackend;
pub(crate) use self::open::MEMORY_ALIGNMENT;
pub(crate) use self::open::{CachePolicy, IoMode, OpenMode, OpenedBackend};
pub(crate) use self::open::{measure_again, open_block, open_file, open_memory, open_null};
pub(crate) use self::open_error::OpenError;
pub(crate) use self::operation::{DelayHold, OperationStage, ReadPath};
pub use self::operation::{MemoryPart, Operation, OperationKind, Span};
pub(crate) use self::place::{FilePlace, FolderEntry, ServedFolder, ServedRoot};
pub(crate) use self::source::{FileChange, OpenedFile};
pub use self::system_call::{CachedRead, DeviceId, FileId, FileRef, SystemCall};

/// Access to one medium: a state machine that turns each operation into [`Step`]s. All cores share
/// one instance.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns the first step of an operation.
    fn start(&self, now: Time, operation: &mut Operation) -> Step;

    /// Returns the next step once the previous one has ended: its call returned `result` (a negated
    /// `errno` on failure), or its wait has ended and `result` is 0.
    fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step;

    /// Whether the medium always reads as zeros. Reads then succeed without an operation and are
    /// answered from a shared buffer of zeros.
    fn reads_zeros(&self) -> bool {
        false
    }

    /// Bytes that the medium occupies on its file system, holes excluded, for the Namespace
    /// Utilization (NUSE); `None` if all of it does, or if unknown. Does not wait for the medium:
    /// the kernel's cached attributes suffice.
    fn allocated_bytes(&self) -> Option<u64> {
        None
    }
}

/// Next step of an operation, which `Storage` executes.
#[derive(Debug)]
pub enum Step {
    /// End of the operation, with this result.
    Done(Result<(), BackendError>),
    /// A system call; its result resumes the operation.
    Call(SystemCall),
    /// A read that returns the bytes present in the page cache and does not wait for the medium;
    /// its result resumes the operation.
    ReadCached(CachedRead),
    /// Wait until this time; the operation is then resumed.
    WaitUntil(Time),
}

/// Cause of an operation's failure, which determines the NVMe status of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The medium is full, or the user's quota is used up.
    #[error("no space left on the medium: {0}")]
    OutOfSpace(Errno),
    /// The medium could not be read or written.
    #[error("medium error: {0}")]
    Medium(Errno),
    /// The file is shorter than it was when it was opened.
    #[error("the file shrank")]
    Shrunk,
    /// Earlier writes were lost on their way from the page cache to the medium. Lasts until the
    /// medium is opened again.
    #[error("earlier writes did not reach the medium")]
    WriteBackFailed,
    /// The medium cannot be written.
    #[error("read-only: {0}")]
    ReadOnly(Errno),
    /// The medium does not support the operation.
    #[error("not supported by the medium: {0}")]
    Unsupported(Errno),
    /// The medium is no longer exported.
    #[error("the namespace was removed")]
    Removed,
    /// The operation was cancelled before it was done.
    #[error("cancelled")]
    Cancelled,
    /// The device was removed.
    #[error("the device is gone: {0}")]
    Gone(Errno),
    /// A system call failed with any other `errno`.
    #[error("system error: {0}")]
    System(Errno),
}

/// Error number of a failed system call (`errno`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from_raw_os_error(self.0).fmt(f)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl BackendError {
    /// Classifies an `errno`. All classes but `Cancelled` keep the number for messages.
    pub const fn from_errno(errno: i32) -> Self {
        let said = Errno(errno);
        match errno {
            libc::ENOSPC | libc::EDQUOT | libc::EFBIG => Self::OutOfSpace(said),
            libc::EIO | libc::EILSEQ | libc::ENODATA | libc::EREMOTEIO | libc::EBADMSG => {
                Self::Medium(said)
            }
            libc::EROFS | libc::EPERM | libc::EACCES => Self::ReadOnly(said),
            libc::EOPNOTSUPP | libc::ENOSYS => Self::Unsupported(said),
            libc::ECANCELED => Self::Cancelled,
            libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN => Self::Gone(said),
            _ => Self::System(said),
        }
    }
}

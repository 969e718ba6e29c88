//! Backends: access to the media behind namespaces (files, block devices, memory, null) as bytes at
//! offsets, without NVMe.
//!
//! A backend makes no system calls for an operation itself: [`Backend::start`] and
//! [`Backend::resume`] return the next step, and the `Storage` of a core executes it. So the same
//! backend runs on io_uring and in the simulator.

mod block;
mod cache_room;
mod cached_reads;
mod claim;
mod closing_medium;
mod content;
pub(crate) mod decorator;
pub(crate) mod file;
mod file_lease;
mod health;
mod io_mode;
mod mapped_file;
pub(crate) mod memory;
mod memory_room;
mod null;
mod numbered_file;
pub(crate) mod open;
pub(crate) mod open_error;
mod open_hint;
mod page_lock;
mod place;
mod range_lock;
mod resident_copy;
mod source;
mod system_call;
mod write_unit;

#[cfg(test)]
mod tests;

use std::ptr::NonNull;
use std::{fmt, io};

use rdma::Time;

use self::range_lock::RangeLock;

pub(crate) use self::cache_room::CacheRoom;
pub use self::cache_room::CacheStats;
pub(crate) use self::claim::FileKey;
pub(crate) use self::closing_medium::ClosingMedium;
pub(crate) use self::content::Content;
pub(crate) use self::file::FileBackend;
pub(crate) use self::health::Health;
pub(crate) use self::io_mode::{CachePolicy, IoMode, MEMORY_ALIGNMENT, OpenMode};
pub(crate) use self::mapped_file::MappedFile;
pub use self::mapped_file::MappedPlace;
pub(crate) use self::memory::MemoryBackend;
pub(crate) use self::memory_room::MemoryRoom;
pub(crate) use self::null::NullBackend;
pub(crate) use self::open::{
    OpenedBackend, measure_again, open_block, open_file, open_memory, open_null,
};
pub(crate) use self::open_error::OpenError;
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

    /// Whether a read may end without a call that waits: its bytes are in memory, or may be in the
    /// page cache. Others are not tried that way, since each start of an operation counts where
    /// faults are injected.
    fn may_read_now(&self) -> bool {
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

/// An operation on a namespace's medium, with its progress.
#[derive(Debug)]
pub struct Operation {
    kind: OperationKind,
    offset: u64,
    length: u64,
    span: Option<Span>,
    /// Bytes completed so far.
    pub(crate) done: u64,
    /// Consecutive interruptions of its system call.
    pub(crate) interruptions: u32,
    /// Current stage of an operation that takes several system calls.
    pub(crate) stage: OperationStage,
    pub(crate) path: ReadPath,
    /// State of the delay, if the medium has a `Delay` decorator.
    pub(crate) hold: DelayHold,
    /// Lock of its range, for media that could return half-written blocks.
    pub(crate) lock: Option<RangeLock>,
    /// Whether [`Operation::tear`] truncated the write.
    torn: bool,
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Reads the range into the span.
    Read,
    /// Writes the span to the range.
    Write {
        /// Whether the bytes must be on the medium before the operation ends (`RWF_DSYNC`).
        durable: bool,
    },
    /// Makes all completed writes durable.
    Flush,
    /// Makes the range read as zeros.
    WriteZeroes {
        /// Whether the zeros must be on the medium before the operation ends.
        durable: bool,
        /// Whether the range may be deallocated in place of writing zeros.
        deallocate: bool,
    },
    /// Deallocates the range, whose bytes are no longer needed. Has no effect if the medium cannot.
    Deallocate,
}

/// Kind of system call that an operation on a file makes at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperationStage {
    /// The system call for its kind, such as `pwritev2` for a write.
    #[default]
    Main,
    /// Punches a hole (`fallocate`), for Write Zeroes that may deallocate.
    Hole,
    /// Writes zeros, because `fallocate` cannot make them.
    Zeros,
    /// Makes the change durable (`fdatasync`).
    Sync,
}

/// Path of a read: descriptor and use of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadPath {
    /// The read has not begun.
    #[default]
    Unchosen,
    /// Reads only the bytes that are in the page cache, without waiting.
    Cached,
    /// Reads through the page cache, which reads missing bytes from the medium.
    Buffered,
    /// Uses the backend's own descriptor, as writes do.
    Own,
}

/// State of an operation in a delay decorator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DelayHold {
    /// The delay has not begun.
    #[default]
    Fresh,
    /// Delayed; a timer will resume it.
    Held,
    /// Passed on to the inner backend.
    Released,
}

impl Operation {
    /// Creates a read of the bytes at `offset` into `span`.
    pub fn read(offset: u64, span: Span) -> Self {
        Self::with_span(OperationKind::Read, offset, span)
    }

    /// Creates a write of the bytes of `span` to `offset`.
    pub fn write(offset: u64, span: Span, durable: bool) -> Self {
        Self::with_span(OperationKind::Write { durable }, offset, span)
    }

    /// Creates a flush of all completed writes.
    pub fn flush() -> Self {
        Self::bare(OperationKind::Flush, 0, 0)
    }

    /// Creates an operation that makes a range read as zeros.
    pub fn write_zeroes(offset: u64, length: u64, durable: bool, deallocate: bool) -> Self {
        Self::bare(OperationKind::WriteZeroes { durable, deallocate }, offset, length)
    }

    /// Creates a deallocation of a range.
    pub fn deallocate(offset: u64, length: u64) -> Self {
        Self::bare(OperationKind::Deallocate, offset, length)
    }

    /// Kind of the operation.
    pub fn kind(&self) -> OperationKind {
        self.kind
    }

    /// Start of the range in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the range in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Memory of a read or write; `None` for other kinds.
    pub fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// Truncates a write to its first `length` bytes.
    pub(crate) fn tear(&mut self, length: u64) {
        self.length = length.min(self.length);
        if let Some(span) = &mut self.span {
            span.length = span.length.min(u32::try_from(length).unwrap_or(u32::MAX));
        }
        self.torn = true;
    }

    /// Whether [`Operation::tear`] was called.
    pub(crate) fn is_torn(&self) -> bool {
        self.torn
    }

    /// Memory of the operation; empty for one without memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.span.as_mut().map_or(&mut [], Span::bytes)
    }

    fn with_span(kind: OperationKind, offset: u64, span: Span) -> Self {
        let length = u64::from(span.length());
        Self { span: Some(span), ..Self::bare(kind, offset, length) }
    }

    fn bare(kind: OperationKind, offset: u64, length: u64) -> Self {
        let (stage, hold) = (OperationStage::default(), DelayHold::default());
        let path = ReadPath::default();
        Self {
            kind,
            offset,
            length,
            span: None,
            done: 0,
            interruptions: 0,
            stage,
            path,
            hold,
            lock: None,
            torn: false,
        }
    }
}

/// Memory lent exclusively to an operation until the operation ends.
#[derive(Debug)]
pub struct Span {
    address: NonNull<u8>,
    length: u32,
}

// SAFETY: a span is the only way to its memory while it exists, wherever it goes.
#[expect(unsafe_code, reason = "a span is memory that a kernel may be writing")]
unsafe impl Send for Span {}

#[expect(unsafe_code, reason = "a span is memory that a kernel may be writing")]
impl Span {
    /// Lends `length` bytes of memory to the backend.
    ///
    /// # Safety
    /// `length` bytes at `address` stay mapped and are read and written through this span only,
    /// until the span is dropped and every operation that carried it has ended.
    pub unsafe fn new(address: *mut u8, length: u32) -> Self {
        let address = NonNull::new(address).expect("a span is not at address zero");
        Self { address, length }
    }

    /// Length of the memory in bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Bytes of the memory. Backends use this only between steps, when no system call uses the
    /// memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the contract of `new`, and the unique reference.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length as usize) }
    }

    /// Part that starts at `from`, at most `length` bytes, for a system call.
    pub(crate) fn part(&self, from: u32, length: u32) -> MemoryPart {
        assert!(from <= self.length, "a part begins inside its span");
        let length = length.min(self.length - from);
        MemoryPart { address: self.address.as_ptr().wrapping_add(from as usize), length }
    }
}

/// Memory of one system call: part of a [`Span`], or constant zeros to write.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPart {
    address: *mut u8,
    length: u32,
}

impl MemoryPart {
    /// Constant zeros, at most `length` bytes, only to write from.
    pub(crate) fn zeros(length: u64) -> Self {
        let length = length.min(ZEROS.0.len() as u64) as u32;
        Self { address: ZEROS.0.as_ptr().cast_mut(), length }
    }

    /// Address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Length in bytes: what a read fills or a write stores.
    pub fn length(&self) -> u32 {
        self.length
    }
}

#[repr(align(4096))]
struct Zeros([u8; 64 * 1024]);

static ZEROS: Zeros = Zeros([0; 64 * 1024]);

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

//! Operations of storage: bytes and offsets, nothing of NVMe.
#![expect(unsafe_code, reason = "a span is memory that a kernel may be writing")]

use std::ptr::NonNull;

use super::range_lock::RangeLock;

/// A request to a namespace's medium, and its progress.
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
    /// File that a read takes its bytes from, if the medium has two.
    pub(crate) path: ReadPath,
    /// Whether a delay still has to pass.
    pub(crate) hold: DelayHold,
    /// Lock on its range, for media without atomic blocks.
    pub(crate) lock: Option<RangeLock>,
    /// Whether only part of a write is stored.
    torn: bool,
}

/// Action of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Fills the span from the medium.
    Read,
    /// Stores the span in the medium.
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
        /// Whether the space may be returned to the file system.
        deallocate: bool,
    },
    /// Returns the space of the range, whose bytes are no longer needed.
    Deallocate,
}

/// Stage that a backend has reached in an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperationStage {
    /// The operation's own system call.
    #[default]
    Main,
    /// Punches a hole in place of zeros.
    Hole,
    /// Writes zeros, because `fallocate` cannot make them.
    Zeros,
    /// Makes the change durable.
    Sync,
}

/// Path of a read's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadPath {
    /// The read has not begun.
    #[default]
    Unchosen,
    /// Bytes present in the page cache only.
    Cached,
    /// Page cache, with missing bytes read from the medium.
    Buffered,
    /// The descriptor that writes use.
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
    /// Reads `span` from `offset`.
    pub fn read(offset: u64, span: Span) -> Self {
        Self::with_span(OperationKind::Read, offset, span)
    }

    /// Writes the bytes of `span` to `offset`.
    pub fn write(offset: u64, span: Span, durable: bool) -> Self {
        Self::with_span(OperationKind::Write { durable }, offset, span)
    }

    /// Makes all completed writes durable.
    pub fn flush() -> Self {
        Self::bare(OperationKind::Flush, 0, 0)
    }

    /// Makes a range read as zeros.
    pub fn write_zeroes(offset: u64, length: u64, durable: bool, deallocate: bool) -> Self {
        Self::bare(OperationKind::WriteZeroes { durable, deallocate }, offset, length)
    }

    /// Returns the space of a range.
    pub fn deallocate(offset: u64, length: u64) -> Self {
        Self::bare(OperationKind::Deallocate, offset, length)
    }

    /// Action of the operation.
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

    /// Memory of a read or write.
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
unsafe impl Send for Span {}

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

//! Operations of storage: bytes and offsets, nothing of NVMe.
#![expect(unsafe_code, reason = "a span is memory that a kernel may be writing")]

use std::ptr::NonNull;

use super::range_lock::RangeLock;

/// One thing to do with a namespace's medium, and how far it got.
#[derive(Debug)]
pub struct Operation {
    kind: OperationKind,
    offset: u64,
    length: u64,
    span: Option<Span>,
    /// Bytes that are done.
    pub(crate) done: u64,
    /// How often in a row its system call did nothing and was to be made again.
    pub(crate) interruptions: u32,
    /// The step under way, for operations that take several system calls.
    pub(crate) stage: OperationStage,
    /// The file that a read takes its bytes from, where the medium has two.
    pub(crate) path: ReadPath,
    /// Whether a delay still has to pass.
    pub(crate) hold: DelayHold,
    /// The lock that keeps other operations off its range, where the medium has none.
    pub(crate) lock: Option<RangeLock>,
    /// Whether only part of a write is stored.
    torn: bool,
}

/// The action of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// Fills the span with the bytes of the medium.
    Read,
    /// Stores the span's bytes.
    Write {
        /// The bytes are on the medium before the operation ends (`RWF_DSYNC`).
        durable: bool,
    },
    /// Everything written before is on the medium before the operation ends.
    Flush,
    /// The range reads as zeros afterwards.
    WriteZeroes {
        /// On the medium before the operation ends.
        durable: bool,
        /// The space may be given back to the file system.
        deallocate: bool,
    },
    /// The range is of no interest any more.
    Deallocate,
}

/// The step that a backend has reached in an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OperationStage {
    /// The operation's own system call, without a detour.
    #[default]
    Main,
    /// A hole is being made where zeros are wanted.
    Hole,
    /// Zeros are being written because the file system can not make them.
    Zeros,
    /// The change is being made durable.
    Sync,
}

/// The way of a read's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ReadPath {
    /// The read has not begun.
    #[default]
    Unchosen,
    /// From the page cache, as far as it has them.
    Cached,
    /// Through the page cache, from the medium where it lacks them.
    Buffered,
    /// The way of writes.
    Own,
}

/// Whether a delay decorator still holds an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DelayHold {
    /// Not seen by it yet.
    #[default]
    Fresh,
    /// Its delay runs: a timer will resume it.
    Held,
    /// Its delay is over, and the inner backend has it.
    Released,
}

impl Operation {
    /// Fills `span` from `offset` on.
    pub fn read(offset: u64, span: Span) -> Self {
        Self::with_span(OperationKind::Read, offset, span)
    }

    /// Stores the bytes of `span` at `offset`.
    pub fn write(offset: u64, span: Span, durable: bool) -> Self {
        Self::with_span(OperationKind::Write { durable }, offset, span)
    }

    /// Makes everything written before durable.
    pub fn flush() -> Self {
        Self::bare(OperationKind::Flush, 0, 0)
    }

    /// Makes a range read as zeros.
    pub fn write_zeroes(offset: u64, length: u64, durable: bool, deallocate: bool) -> Self {
        Self::bare(OperationKind::WriteZeroes { durable, deallocate }, offset, length)
    }

    /// Gives a range back.
    pub fn deallocate(offset: u64, length: u64) -> Self {
        Self::bare(OperationKind::Deallocate, offset, length)
    }

    /// The action that the operation asks for.
    pub fn kind(&self) -> OperationKind {
        self.kind
    }

    /// Where it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How many bytes it concerns.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Its memory; only reads and writes have any.
    pub fn span(&self) -> Option<&Span> {
        self.span.as_ref()
    }

    /// Leaves only the first `length` bytes of a write.
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

    /// Its bytes; empty for an operation without memory.
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

/// Memory that is lent to an operation, exclusively, until the operation is over.
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
    /// until the span is dropped and every operation that carried it is over.
    pub unsafe fn new(address: *mut u8, length: u32) -> Self {
        let address = NonNull::new(address).expect("a span is not at address zero");
        Self { address, length }
    }

    /// Its length in bytes.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Its bytes. Backends use this only while no system call is at work on it: between steps.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the contract of `new`, and the unique reference.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.length as usize) }
    }

    /// The part from `from` on, at most `length` bytes, for a system call.
    pub(crate) fn part(&self, from: u32, length: u32) -> MemoryPart {
        assert!(from <= self.length, "a part begins inside its span");
        let length = length.min(self.length - from);
        MemoryPart { address: self.address.as_ptr().wrapping_add(from as usize), length }
    }
}

/// The memory of one system call: part of a [`Span`], or constant zeros to be written.
#[derive(Clone, Copy, Debug)]
pub struct MemoryPart {
    address: *mut u8,
    length: u32,
}

impl MemoryPart {
    /// At most `length` zeros, to write from and never to read into.
    pub(crate) fn zeros(length: u64) -> Self {
        let length = length.min(ZEROS.0.len() as u64) as u32;
        Self { address: ZEROS.0.as_ptr().cast_mut(), length }
    }

    /// Address of the first byte.
    pub fn address(&self) -> *mut u8 {
        self.address
    }

    /// Length in bytes, which is what a read fills or a write stores.
    pub fn length(&self) -> u32 {
        self.length
    }
}

#[repr(align(4096))]
struct Zeros([u8; 64 * 1024]);

static ZEROS: Zeros = Zeros([0; 64 * 1024]);

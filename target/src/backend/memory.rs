//! Backend of memory namespaces: anonymous memory.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "copies with one instruction"))]

use std::collections::TryReserveError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdma::Time;

use super::page_lock::PageLock;
use super::{Backend, BackendError, Errno, MemoryRoom, Step};
use crate::backend::{Operation, OperationKind};

/// Unit of allocation of a memory namespace in bytes. Smaller chunks save memory of sparse
/// namespaces and cost more lookups.
const CHUNK_BYTES: u64 = 64 * 1024;
const WORD_BYTES: u64 = 8;
/// Unit of atomic reads and writes in bytes. Logical blocks are at most this large and aligned, so
/// that none spans two units.
const PAGE_BYTES: u64 = 4096;
const PAGE_WORDS: usize = (PAGE_BYTES / WORD_BYTES) as usize;
/// Cost, in bytes zeroed, after which a step of Write Zeroes or Deallocate ends. The core serves
/// other operations between steps.
const STEP_BYTES: u64 = 1 << 20;
/// Cost of finding that a chunk is not allocated, in bytes that could be zeroed in that time (an
/// estimate).
const LOOK_BYTES: u64 = 256;
/// Delay until the next step, so that it falls into a later turn.
const MOMENT: Duration = Duration::from_nanos(1);

#[derive(Debug)]
struct Chunk {
    words: Box<[AtomicU64]>,
    pages: Box<[PageLock]>,
}

/// Medium in memory, lost when the target ends. Chunks are allocated when they are first written.
/// Reads and writes of a page are atomic: of concurrent writes, one determines all of its bytes.
#[derive(Debug)]
pub struct MemoryBackend {
    chunks: Box<[OnceLock<Chunk>]>,
    size: u64,
    room: Arc<MemoryRoom>,
}

impl MemoryBackend {
    /// Creates a medium of `size` zero bytes, a multiple of eight.
    ///
    /// # Errors
    /// There is no memory for the table of chunks, which is allocated up front.
    pub fn new(size: u64) -> Result<Self, TryReserveError> {
        Self::in_room(size, Arc::clone(MemoryRoom::of_process()))
    }

    /// Creates a medium that takes the memory of its chunks from `room`.
    pub(super) fn in_room(size: u64, room: Arc<MemoryRoom>) -> Result<Self, TryReserveError> {
        assert!(size.is_multiple_of(WORD_BYTES));
        Ok(Self { chunks: defaults(size.div_ceil(CHUNK_BYTES))?, size, room })
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) {
        for (piece, bytes) in pieces(offset, bytes.len() as u64).zip_bytes(bytes) {
            match self.chunks[piece.chunk].get() {
                Some(chunk) => chunk.read(piece, bytes),
                None => bytes.fill(0),
            }
        }
    }

    /// Writes all of the bytes, or nothing if memory for them is lacking.
    fn write(&self, offset: u64, bytes: &mut [u8]) -> Result<(), BackendError> {
        for piece in pieces(offset, bytes.len() as u64) {
            self.chunk(piece)?;
        }
        for (piece, bytes) in pieces(offset, bytes.len() as u64).zip_bytes(bytes) {
            self.chunk(piece)?.write(piece, bytes);
        }
        Ok(())
    }

    /// Chunk of a piece, allocated if missing; an error if there is no memory for it.
    fn chunk(&self, piece: ChunkPiece) -> Result<&Chunk, BackendError> {
        let place = &self.chunks[piece.chunk];
        if let Some(chunk) = place.get() {
            return Ok(chunk);
        }
        let no_memory = BackendError::OutOfSpace(Errno(libc::ENOMEM));
        if !self.room.take(CHUNK_BYTES) {
            return Err(no_memory);
        }
        let chunk = Chunk::zeros().map_err(|_| no_memory)?;
        Ok(place.get_or_init(|| chunk))
    }

    /// Zeros the next chunks of the operation's range until the cost reaches [`STEP_BYTES`].
    fn zero_on(&self, now: Time, operation: &mut Operation) -> Step {
        let from = operation.offset() + operation.done;
        let mut cost_bytes = 0;
        for piece in pieces(from, operation.length() - operation.done) {
            if cost_bytes >= STEP_BYTES {
                return Step::WaitUntil(now + MOMENT);
            }
            cost_bytes += self.zero(piece);
            operation.done += piece.length();
        }
        Step::Done(Ok(()))
    }

    /// Zeros a piece. Returns the cost: the bytes zeroed, or [`LOOK_BYTES`] if the chunk is not
    /// allocated and therefore reads as zeros already.
    fn zero(&self, piece: ChunkPiece) -> u64 {
        match self.chunks[piece.chunk].get() {
            // Other operations may be reading or writing the chunk, so it cannot be freed.
            Some(chunk) => {
                chunk.zero(piece);
                piece.length()
            }
            None => LOOK_BYTES,
        }
    }

    fn has(&self, operation: &Operation) -> bool {
        let (offset, length) = (operation.offset(), operation.length());
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.size);
        inside && offset.is_multiple_of(WORD_BYTES) && length.is_multiple_of(WORD_BYTES)
    }
}

impl Backend for MemoryBackend {
    fn start(&self, now: Time, operation: &mut Operation) -> Step {
        if !self.has(operation) {
            return Step::Done(Err(BackendError::from_errno(libc::EINVAL)));
        }
        match operation.kind() {
            OperationKind::Read => self.read(operation.offset(), operation.bytes()),
            OperationKind::Write { .. } => {
                return Step::Done(self.write(operation.offset(), operation.bytes()));
            }
            // Takes a later turn, however short the range: a host with many such commands would
            // otherwise keep the core busy with all of them in one turn.
            OperationKind::WriteZeroes { .. } | OperationKind::Deallocate => {
                return Step::WaitUntil(now + MOMENT);
            }
            OperationKind::Flush => {}
        }
        Step::Done(Ok(()))
    }

    fn resume(&self, now: Time, operation: &mut Operation, _result: i32) -> Step {
        self.zero_on(now, operation)
    }

    fn may_read_now(&self) -> bool {
        true
    }
}

impl Chunk {
    fn zeros() -> Result<Self, TryReserveError> {
        Ok(Self {
            words: defaults(CHUNK_BYTES / WORD_BYTES)?,
            pages: defaults(CHUNK_BYTES / PAGE_BYTES)?,
        })
    }

    fn read(&self, piece: ChunkPiece, mut bytes: &mut [u8]) {
        for (page, words) in self.pages_of(piece) {
            let length = words.len() * WORD_BYTES as usize;
            let (part, rest) = std::mem::take(&mut bytes).split_at_mut(length);
            page.read(|| load(words, part));
            bytes = rest;
        }
    }

    fn write(&self, piece: ChunkPiece, mut bytes: &[u8]) {
        for (page, words) in self.pages_of(piece) {
            let (part, rest) = bytes.split_at(words.len() * WORD_BYTES as usize);
            page.write(|| store(words, part));
            bytes = rest;
        }
    }

    fn zero(&self, piece: ChunkPiece) {
        for (page, words) in self.pages_of(piece) {
            page.write(|| words.iter().for_each(|word| word.store(0, Ordering::Relaxed)));
        }
    }

    /// Pages that a piece touches, each with its words.
    fn pages_of(&self, piece: ChunkPiece) -> impl Iterator<Item = (&PageLock, &[AtomicU64])> {
        let words = piece.words();
        let touched = words.start / PAGE_WORDS..words.end.div_ceil(PAGE_WORDS);
        touched.map(move |page| {
            let from = words.start.max(page * PAGE_WORDS);
            let to = words.end.min((page + 1) * PAGE_WORDS);
            (&self.pages[page], &self.words[from..to])
        })
    }
}

fn defaults<T: Default>(count: u64) -> Result<Box<[T]>, TryReserveError> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut values = Vec::new();
    values.try_reserve_exact(count)?;
    values.resize_with(count, T::default);
    Ok(values.into())
}

/// Copies words to `bytes`. For 4 KiB one instruction is a third faster than a loop over words.
#[cfg(target_arch = "x86_64")]
fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let length = bytes.len().min(size_of_val(words));
    // SAFETY: both are at least as long. A concurrent write to the words is harmless to the
    // instruction: the page lock makes the caller read again.
    unsafe {
        core::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rdi") bytes.as_mut_ptr() => _,
            inout("rsi") words.as_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks_exact_mut(WORD_BYTES as usize)) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
}

fn store(words: &[AtomicU64], bytes: &[u8]) {
    for (word, bytes) in words.iter().zip(bytes.chunks_exact(WORD_BYTES as usize)) {
        let bytes = bytes.try_into().expect("chunks of eight");
        word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

/// Part of a range that lies in one chunk: its bytes `from..to`.
#[derive(Clone, Copy, Debug)]
struct ChunkPiece {
    chunk: usize,
    from: u64,
    to: u64,
}

impl ChunkPiece {
    fn length(&self) -> u64 {
        self.to - self.from
    }

    fn words(&self) -> std::ops::Range<usize> {
        (self.from / WORD_BYTES) as usize..(self.to / WORD_BYTES) as usize
    }
}

struct ChunkPieces {
    offset: u64,
    end: u64,
}

fn pieces(offset: u64, length: u64) -> ChunkPieces {
    ChunkPieces { offset, end: offset + length }
}

impl ChunkPieces {
    /// Pairs each piece with its part of `bytes`.
    fn zip_bytes(self, mut bytes: &mut [u8]) -> impl Iterator<Item = (ChunkPiece, &mut [u8])> {
        self.map(move |piece| {
            let (head, tail) = std::mem::take(&mut bytes).split_at_mut(piece.length() as usize);
            bytes = tail;
            (piece, head)
        })
    }
}

impl Iterator for ChunkPieces {
    type Item = ChunkPiece;

    fn next(&mut self) -> Option<ChunkPiece> {
        if self.offset >= self.end {
            return None;
        }
        let chunk = self.offset / CHUNK_BYTES;
        let from = self.offset % CHUNK_BYTES;
        let to = CHUNK_BYTES.min(from + (self.end - self.offset));
        self.offset += to - from;
        Some(ChunkPiece { chunk: chunk as usize, from, to })
    }
}

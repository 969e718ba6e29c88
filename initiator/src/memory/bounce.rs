//! Bounce buffers: memory for blocks that the caller transfers only in part.
//!
//! Each controller has its own, so that memory which a target may write to never holds data of
//! another target.
#![expect(unsafe_code, reason = "registers its memory and copies to and from it")]

use std::io;
use std::ops::Range;
use std::ptr::NonNull;

use rdma::{Access, Mem, MemoryRegion, Provider, Registered, Sge};

use crate::engine::wire::Data;
use crate::memory::pages::Pages;
use crate::memory::region::RegionSlice;

/// Bytes of a chunk: the largest supported logical block, and the most data of an admin command.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// Most bytes of blocks of an unaligned range that is bounced as a whole.
pub(crate) const WHOLE_RANGE_BYTES: u64 = 16 << 10;

/// Number of chunks of a pool; their memory is resident only as far as it was used.
const CHUNKS: u16 = 128;

/// A fixed number of chunks. The lowest free one is used first, so that few become resident.
pub(crate) struct BouncePool {
    /// First byte of the mapping.
    start: NonNull<u8>,
    lkey: u32,
    rkey: u32,
    free: Vec<u16>,
    /// The mapping with its registration, which is of a type of the provider.
    #[expect(dead_code, reason = "held")]
    memory: Box<dyn Send>,
}

// SAFETY: the mapping, which is `Send`, belongs to this value alone, and `start` points into it.
unsafe impl Send for BouncePool {}

/// A chunk in use, which must be returned with [`BouncePool::release`].
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BounceChunk(u16);

impl BouncePool {
    /// Maps and registers the chunks, without huge pages, since most are never touched.
    pub(crate) fn new<P: Provider>(device: &P::Device) -> io::Result<Self> {
        let pages = Pages::new(usize::from(CHUNKS) * CHUNK_BYTES)?;
        let start = pages.address();
        let memory = Mem::Host { addr: pages.address().as_ptr(), length: pages.length() };
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        // SAFETY: the place is that of the pages, which are reached by raw copies only.
        let memory: Registered<P, Pages> =
            unsafe { Registered::new(device, pages, memory, access) }?;
        let (lkey, rkey) = (memory.region().lkey(), memory.region().rkey());
        Ok(Self { start, lkey, rkey, free: (0..CHUNKS).rev().collect(), memory: Box::new(memory) })
    }

    /// Takes a free chunk, if there is one.
    pub(crate) fn claim(&mut self) -> Option<BounceChunk> {
        self.free.pop().map(BounceChunk)
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Frees a chunk, which no device may be using.
    pub(crate) fn release(&mut self, chunk: BounceChunk) {
        debug_assert!(!self.free.contains(&chunk.0));
        self.free.push(chunk.0);
    }

    /// Returns the first `length` bytes of a chunk as data of a command.
    pub(crate) fn data(&self, chunk: &BounceChunk, length: u32) -> Data<'static> {
        Data::Keyed { address: self.address(chunk), length, rkey: self.rkey }
    }

    /// Returns the address of a chunk, for SGL descriptors and work requests.
    fn address(&self, chunk: &BounceChunk) -> u64 {
        self.start(chunk).addr().get() as u64
    }

    fn start(&self, chunk: &BounceChunk) -> NonNull<u8> {
        // SAFETY: within the mapping, which has room for all chunks.
        unsafe { self.start.add(usize::from(chunk.0) * CHUNK_BYTES) }
    }

    /// Returns the first `length` bytes of a chunk as local memory of a work request.
    pub(crate) fn sge(&self, chunk: &BounceChunk, length: u32) -> Sge {
        Sge { addr: self.address(chunk), length, lkey: self.lkey }
    }

    /// Copies bytes of a chunk, from `offset` on, to `to`.
    ///
    /// # Panics
    /// The bytes are not within the chunk.
    pub(crate) fn copy_out(&self, chunk: &BounceChunk, offset: usize, to: &mut [u8]) {
        // SAFETY: `to` is memory of the caller's.
        unsafe { self.copy_out_raw(chunk, offset, NonNull::from(to)) };
    }

    /// Copies bytes of a chunk, from `offset` on, to a part of a slice.
    ///
    /// # Panics
    /// The bytes are not within the chunk, or the part is not within the slice.
    pub(crate) fn copy_out_to(
        &self,
        chunk: &BounceChunk,
        offset: usize,
        slice: &mut RegionSlice,
        part: Range<usize>,
    ) {
        // SAFETY: the slice is borrowed exclusively.
        unsafe { self.copy_out_raw(chunk, offset, slice.part(part.start, part.len())) };
    }

    /// # Safety
    /// `to` is valid for writes.
    unsafe fn copy_out_raw(&self, chunk: &BounceChunk, offset: usize, to: NonNull<[u8]>) {
        assert!(offset.checked_add(to.len()).is_some_and(|end| end <= CHUNK_BYTES));
        // SAFETY: the source is within the mapping (checked) and never borrowed as a reference;
        // `to` is other memory. A target that writes there during the copy violates the protocol
        // and corrupts only its own data.
        unsafe {
            let from = self.start(chunk).add(offset);
            from.copy_to_nonoverlapping(to.cast(), to.len());
        }
    }

    /// Copies bytes to a chunk, from `offset` on.
    ///
    /// # Panics
    /// The bytes do not fit the chunk.
    pub(crate) fn copy_in(&mut self, chunk: &BounceChunk, offset: usize, from: &[u8]) {
        // SAFETY: `from` is memory of the caller's.
        unsafe { self.copy_in_raw(chunk, offset, NonNull::from(from)) };
    }

    /// Copies a part of a slice to a chunk, from `offset` on.
    ///
    /// # Panics
    /// The bytes do not fit the chunk, or the part is not within the slice.
    pub(crate) fn copy_in_from(
        &mut self,
        chunk: &BounceChunk,
        offset: usize,
        slice: &RegionSlice,
        part: Range<usize>,
    ) {
        // SAFETY: the slice is borrowed.
        unsafe { self.copy_in_raw(chunk, offset, slice.part(part.start, part.len())) };
    }

    /// # Safety
    /// `from` is valid for reads.
    unsafe fn copy_in_raw(&mut self, chunk: &BounceChunk, offset: usize, from: NonNull<[u8]>) {
        assert!(offset.checked_add(from.len()).is_some_and(|end| end <= CHUNK_BYTES));
        // SAFETY: as in `copy_out_raw`, the other way round.
        unsafe {
            let to = self.start(chunk).add(offset);
            to.copy_from_nonoverlapping(from.cast(), from.len());
        }
    }
}

//! Buffers that data passes through on its way between a host and a namespace.
#![expect(unsafe_code, reason = "maps the pool's memory and hands out parts of it")]

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::{io, mem};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::backend::{MEMORY_ALIGNMENT, Span};
use crate::limits::{ANONYMOUS_POOL_BYTES, ANONYMOUS_TRANSFER_BYTES, POOL_LEAST_BLOCKS};

/// Smallest buffer in bytes: the page size, and the alignment of every buffer.
pub(crate) const UNIT_BYTES: usize = 4096;
const _: () = assert!(UNIT_BYTES.is_multiple_of(MEMORY_ALIGNMENT as usize));

/// Bytes of a huge page, on processors with 4 KiB pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returned buffers of each size that are kept for reuse and not merged into larger ones.
const SPARE_BUFFERS: usize = 32;

/// Memory of the process that is registered once with each RDMA device. The process writes it only
/// through buffers and receive areas, each with one owner.
#[derive(Debug)]
pub(crate) struct PoolMemory {
    /// First byte of the mapping; its length is in the field `mapped_length`.
    mapped: NonNull<u8>,
    mapped_length: usize,
    /// First byte of the usable memory in the mapping; zeros follow it.
    base: NonNull<u8>,
    length: usize,
    zeros_length: usize,
}

// SAFETY: the struct is an address range; each reader or writer of it holds a `Buffer` for that
// part.
unsafe impl Send for PoolMemory {}
// SAFETY: as above; no method of a shared reference reads or writes the memory.
unsafe impl Sync for PoolMemory {}

impl PoolMemory {
    /// Maps `length` bytes, rounded up to whole pages, followed by `zeros_length` bytes of zeros.
    /// Uses huge pages if the system provides them, which the kernel passes to a disk at a fraction
    /// of the cost. The memory is anonymous: a file in memory seldom gets huge pages.
    ///
    /// # Errors
    /// The error of the system call.
    pub(crate) fn new(length: usize, zeros_length: usize) -> io::Result<Arc<Self>> {
        let length = length.max(1).next_multiple_of(UNIT_BYTES);
        let zeros_length = zeros_length.next_multiple_of(UNIT_BYTES);
        // Huge pages are aligned to their size.
        let mapped_length = length + zeros_length + HUGE_PAGE_BYTES;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                mapped_length,
                protection,
                MapFlags::PRIVATE,
            )?
        };
        let base =
            mapped.wrapping_add(mapped.addr().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr());
        // SAFETY: the range lies in the new mapping. Refusal costs speed only.
        let _ = unsafe { rustix::mm::madvise(base, length, Advice::LinuxHugepage) };
        let [mapped, base] = [mapped, base]
            .map(|at| NonNull::new(at.cast()).expect("a mapping is never at address zero"));
        Ok(Arc::new(Self { mapped, mapped_length, base, length, zeros_length }))
    }

    /// Address of the first usable byte.
    pub(crate) fn address(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Length in bytes of the memory that devices may access, the zeros included.
    pub(crate) fn registered_length(&self) -> usize {
        self.length + self.zeros_length
    }

    /// Address of `length` bytes that stay zero. They are never written, so that the system backs
    /// them with one shared page until a device pins them.
    pub(crate) fn zeros(&self, length: u32) -> *const u8 {
        assert!(length as usize <= self.zeros_length, "as long as the longest transfer");
        self.address().wrapping_add(self.length)
    }
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `new`; devices and rings that use it hold an `Arc` of
        // it.
        let _ = unsafe { rustix::mm::munmap(self.mapped.as_ptr().cast(), self.mapped_length) };
    }
}

/// Division of a process's memory: a pool for the hosts of each core, followed by a small one for
/// the anonymous connections of each core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolPlan {
    cores: usize,
    block_bytes: usize,
    /// Number of blocks in the pool of each core.
    blocks: usize,
}

impl PoolPlan {
    /// Plans at least `wanted` bytes for the hosts of all `cores`, in blocks of `block_bytes`, and
    /// at least [`POOL_LEAST_BLOCKS`] for each core.
    pub(crate) fn new(wanted: u64, cores: usize, block_bytes: usize) -> Self {
        let blocks = (wanted as usize).div_ceil(cores * block_bytes).max(POOL_LEAST_BLOCKS);
        Self { cores, block_bytes, blocks }
    }

    /// Bytes of the pools for hosts, of all cores.
    pub(crate) fn host_bytes(&self) -> usize {
        self.cores * self.blocks * self.block_bytes
    }

    /// Bytes of all pools, those for anonymous connections included.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.host_bytes() + self.cores * ANONYMOUS_POOL_BYTES
    }

    /// Pools of one core, for hosts and for anonymous connections, in memory of
    /// [`PoolPlan::memory_bytes`].
    pub(crate) fn pools(&self, memory: &Arc<PoolMemory>, core: usize) -> (Pool, Pool) {
        let start = core * self.blocks * self.block_bytes;
        let hosts = Pool::new(Arc::clone(memory), start, self.blocks, self.block_bytes);
        let start = self.host_bytes() + core * ANONYMOUS_POOL_BYTES;
        let block_bytes = ANONYMOUS_TRANSFER_BYTES as usize;
        let blocks = ANONYMOUS_POOL_BYTES / block_bytes;
        (hosts, Pool::new(Arc::clone(memory), start, blocks, block_bytes))
    }
}

/// A part of the memory, divided into power-of-two buffers from [`UNIT_BYTES`] up to its block
/// size. Small and large transfers share it: the buffer of a 4 KiB read is merged into a larger one
/// as soon as its neighbours are free.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: Arc<PoolMemory>,
    /// First unit of the part, counted from the start of the memory.
    first: u32,
    buddy: Buddy,
    /// Recently returned buffers by order, kept because the next requests are likely to be as
    /// large.
    spare: Box<[Vec<u32>]>,
    spare_units: u32,
}

/// Buffer of a pool. It has to be released to its pool; dropping it leaks its memory.
#[derive(Debug)]
#[must_use]
pub(crate) struct Buffer {
    /// First unit, counted from the start of the memory.
    unit: u32,
    order: u8,
    length: u32,
}

impl Buffer {
    /// First unit of the buffer, which identifies it in the memory.
    pub(crate) fn unit(&self) -> u32 {
        self.unit
    }

    /// Length of the data that it was allocated for, in bytes.
    pub(crate) fn length(&self) -> u32 {
        self.length
    }

    /// Sets the length of the buffer, at most [`Buffer::bytes`].
    pub(crate) fn of_length(self, length: u32) -> Self {
        assert!(u64::from(length) <= self.bytes(), "no more than there is");
        Self { length, ..self }
    }

    /// Bytes that the buffer takes in its pool, a power of two.
    pub(crate) fn bytes(&self) -> u64 {
        (UNIT_BYTES as u64) << self.order
    }
}

impl Pool {
    /// Creates a pool of `blocks` blocks of `block_bytes` at `start` in `memory`, which must
    /// contain them.
    ///
    /// `block_bytes` is a power of two of at least one unit, and the size of the largest buffer.
    pub(crate) fn new(
        memory: Arc<PoolMemory>,
        start: usize,
        blocks: usize,
        block_bytes: usize,
    ) -> Self {
        assert!(block_bytes.is_power_of_two() && block_bytes >= UNIT_BYTES);
        assert!(blocks > 0 && start.is_multiple_of(UNIT_BYTES));
        assert!(start + blocks * block_bytes <= memory.length, "the memory holds every block");
        let first = (start / UNIT_BYTES) as u32;
        let top = (block_bytes / UNIT_BYTES).trailing_zeros() as u8;
        let spare = (0..=top).map(|_| Vec::with_capacity(SPARE_BUFFERS)).collect();
        Self { memory, first, buddy: Buddy::new(blocks as u32, top), spare, spare_units: 0 }
    }

    /// Bytes that a buffer of `length` takes in its pool: the next power of two, at least
    /// [`UNIT_BYTES`].
    pub(crate) fn bytes_for(length: u32) -> u64 {
        (UNIT_BYTES as u64) << order_for(length)
    }

    /// Allocates a buffer of `length` bytes; `None` if none is free or `length` exceeds a block.
    pub(crate) fn allocate(&mut self, length: u32) -> Option<Buffer> {
        let order = order_for(length);
        let spare = self.spare.get_mut(usize::from(order))?.pop();
        let unit = match spare {
            Some(unit) => {
                self.spare_units -= 1 << order;
                unit
            }
            None => self.buddy.allocate(order).or_else(|| self.join_and_allocate(order))?,
        };
        Some(Buffer { unit: self.first + unit, order, length })
    }

    pub(crate) fn release(&mut self, buffer: Buffer) {
        debug_assert!(self.owns(&buffer));
        let unit = buffer.unit - self.first;
        let spare = &mut self.spare[usize::from(buffer.order)];
        if spare.len() < SPARE_BUFFERS {
            spare.push(unit);
            self.spare_units += 1 << buffer.order;
        } else {
            self.buddy.release(unit, buffer.order);
        }
    }

    /// Whether a buffer was allocated from this pool.
    pub(crate) fn owns(&self, buffer: &Buffer) -> bool {
        (self.first..self.first + self.buddy.units()).contains(&buffer.unit)
    }

    /// Merges spare buffers into larger ones, and allocates again.
    #[cold]
    fn join_and_allocate(&mut self, order: u8) -> Option<u32> {
        for (order, spare) in (0..).zip(&mut self.spare) {
            spare.drain(..).for_each(|unit| self.buddy.release(unit, order));
        }
        self.spare_units = 0;
        self.buddy.allocate(order)
    }

    /// Bytes of a block, the largest buffer.
    pub(crate) fn block_bytes(&self) -> usize {
        UNIT_BYTES << self.buddy.top()
    }

    /// Bytes of the pool that are not allocated.
    pub(crate) fn free_bytes(&self) -> u64 {
        u64::from(self.buddy.free_units() + self.spare_units) * UNIT_BYTES as u64
    }

    /// Bytes of the pool, free or allocated.
    pub(crate) fn total_bytes(&self) -> u64 {
        u64::from(self.buddy.units()) * UNIT_BYTES as u64
    }

    /// Address and length of the pool in memory.
    pub(crate) fn range(&self) -> (*mut u8, usize) {
        let start = self.first as usize * UNIT_BYTES;
        (self.memory.address().wrapping_add(start), self.total_bytes() as usize)
    }

    /// Memory that the pool is a part of.
    pub(crate) fn memory(&self) -> &Arc<PoolMemory> {
        &self.memory
    }

    /// Address of a buffer of any pool in the same memory.
    pub(crate) fn address(&self, buffer: &Buffer) -> *mut u8 {
        self.memory.address().wrapping_add(buffer.unit as usize * UNIT_BYTES)
    }

    /// Contents of a buffer of any pool in the same memory.
    ///
    /// # Safety
    /// No device and no ring uses the buffer while the slice lives.
    pub(crate) unsafe fn bytes<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        // SAFETY: the buffer lies in the mapping, which the pool keeps, the unique reference to the
        // buffer makes the slice the only one, and the caller vouches for devices.
        unsafe { std::slice::from_raw_parts_mut(self.address(buffer), buffer.length as usize) }
    }

    /// Part of a buffer for storage: `length` bytes from `offset` on.
    ///
    /// # Safety
    /// The buffer stays allocated, and nothing else reads or writes that part of it, until the
    /// operation with the span has ended.
    pub(crate) unsafe fn span(&self, buffer: &Buffer, offset: u32, length: u32) -> Span {
        assert!(u64::from(offset) + u64::from(length) <= (UNIT_BYTES as u64) << buffer.order);
        let address = self.address(buffer).wrapping_add(offset as usize);
        // SAFETY: in bounds as asserted; the rest is the caller's promise.
        unsafe { Span::new(address, length) }
    }
}

/// Smallest order whose run of units holds `length` bytes.
fn order_for(length: u32) -> u8 {
    let last_unit = length.saturating_sub(1) / UNIT_BYTES as u32;
    (u32::BITS - last_unit.leading_zeros()) as u8
}

/// No unit, in the lists of [`Buddy`].
const NONE: u32 = u32::MAX;
/// Value of `free_order` for a unit that does not begin a free run.
const TAKEN: u8 = u8::MAX;

/// Buddy allocator over numbered units, in blocks of `1 << top` that are split on demand and merged
/// when both halves are free. It never touches the memory that the units stand for.
#[derive(Debug)]
struct Buddy {
    top: u8,
    free_units: u32,
    /// First unit of the first free run of each order, or [`NONE`].
    heads: Vec<u32>,
    units: Vec<BuddyUnit>,
}

/// State of a unit that begins a free run: the order of the run, and its neighbours in the list of
/// that order.
#[derive(Clone, Debug)]
struct BuddyUnit {
    next: u32,
    previous: u32,
    free_order: u8,
}

impl Buddy {
    fn new(blocks: u32, top: u8) -> Self {
        let units = (blocks as usize) << top;
        let mut buddy = Self {
            top,
            free_units: 0,
            heads: vec![NONE; usize::from(top) + 1],
            units: vec![BuddyUnit { next: NONE, previous: NONE, free_order: TAKEN }; units],
        };
        for block in (0..blocks).rev() {
            buddy.insert(block << top, top);
        }
        buddy.free_units = units as u32;
        buddy
    }

    fn top(&self) -> u8 {
        self.top
    }

    fn units(&self) -> u32 {
        self.units.len() as u32
    }

    fn free_units(&self) -> u32 {
        self.free_units
    }

    /// Allocates a run of `1 << order` units; returns its first unit.
    fn allocate(&mut self, order: u8) -> Option<u32> {
        let found = (order..=self.top).find(|&order| self.heads[usize::from(order)] != NONE)?;
        let unit = self.heads[usize::from(found)];
        self.remove(unit);
        for half in (order..found).rev() {
            self.insert(unit + (1 << half), half);
        }
        self.free_units -= 1 << order;
        Some(unit)
    }

    fn release(&mut self, unit: u32, order: u8) {
        self.free_units += 1 << order;
        let (mut unit, mut order) = (unit, order);
        while order < self.top {
            let buddy = unit ^ (1 << order);
            if self.units[buddy as usize].free_order != order {
                break;
            }
            self.remove(buddy);
            unit &= !(1 << order);
            order += 1;
        }
        self.insert(unit, order);
    }

    fn insert(&mut self, unit: u32, order: u8) {
        let head = mem::replace(&mut self.heads[usize::from(order)], unit);
        let taken = &mut self.units[unit as usize];
        debug_assert_eq!(taken.free_order, TAKEN, "released twice");
        *taken = BuddyUnit { next: head, previous: NONE, free_order: order };
        if head != NONE {
            self.units[head as usize].previous = unit;
        }
    }

    fn remove(&mut self, unit: u32) {
        let free = &mut self.units[unit as usize];
        let order = mem::replace(&mut free.free_order, TAKEN);
        let (previous, next) = (free.previous, free.next);
        match previous {
            NONE => self.heads[usize::from(order)] = next,
            previous => self.units[previous as usize].next = next,
        }
        if next != NONE {
            self.units[next as usize].previous = previous;
        }
    }
}

#[cfg(test)]
mod tests;

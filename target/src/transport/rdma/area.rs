//! The memory of one connection: where capsules arrive and responses leave from.
#![expect(unsafe_code, reason = "maps memory that a device writes, and reads it")]

use std::io;
use std::ptr::{self, NonNull};

use ::rdma::{Access, Device, Mem, MemoryRegion, Provider, Sge};
use nvme_proto::{Cqe, IntoBytes, Sqe};
use rustix::mm::{MapFlags, ProtFlags};

use crate::deliberate_bugs::{self, Bug};
use crate::pool::UNIT_BYTES;
use crate::request::{Receive, Slot};
use crate::storage::Span;

const SQE_BYTES: usize = size_of::<Sqe>();
const CQE_BYTES: usize = size_of::<Cqe>();

/// How large it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) receives: u32,
    pub(super) slots: u32,
    /// In-capsule data of one command, in bytes.
    pub(super) in_capsule: u32,
}

impl Layout {
    /// In-capsule data begins on a page of its own, so that it can go to the medium from where it landed.
    fn stride(&self) -> usize {
        (self.in_capsule as usize).next_multiple_of(UNIT_BYTES)
    }

    fn sqes_at(&self) -> usize {
        self.receives as usize * self.stride()
    }

    fn cqes_at(&self) -> usize {
        self.sqes_at() + self.receives as usize * SQE_BYTES
    }

    fn bytes(&self) -> usize {
        (self.cqes_at() + self.slots as usize * CQE_BYTES).next_multiple_of(UNIT_BYTES)
    }
}

/// Registered memory of one connection: an entry and in-capsule data for each receive, and a response for
/// each request slot.
pub(super) struct Area<P: Provider> {
    // First: deregistered before it is unmapped.
    region: P::Region,
    memory: Mapping,
    layout: Layout,
}

impl<P: Provider> Area<P> {
    /// Maps and registers.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn new(device: &P::Device, layout: Layout) -> io::Result<Self> {
        let memory = Mapping::new(layout.bytes())?;
        let host = Mem::Host { addr: memory.base.as_ptr(), length: memory.length };
        // SAFETY: the mapping outlives the region by field order, and only raw accesses reach it.
        let region = unsafe { device.register(host, Access::LOCAL_WRITE) }?;
        Ok(Self { region, memory, layout })
    }

    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Where a capsule goes: the entry, then its data on a page of its own.
    pub(super) fn receive_sges(&self, receive: Receive) -> ([Sge; 2], usize) {
        let lkey = self.region.lkey();
        let entry = Sge { addr: self.sqe(receive) as u64, length: SQE_BYTES as u32, lkey };
        let data = Sge { addr: self.data(receive) as u64, length: self.layout.in_capsule, lkey };
        ([entry, data], if self.layout.in_capsule == 0 { 1 } else { 2 })
    }

    /// The entry of a capsule that has arrived.
    pub(super) fn entry(&self, receive: Receive) -> Sqe {
        // SAFETY: in bounds by construction; the receive completed, so nobody writes it until it is posted
        // again; any bytes are an entry.
        unsafe { ptr::read_unaligned(self.sqe(receive).cast()) }
    }

    /// Writes a slot's response and says where it is.
    pub(super) fn set_response(&mut self, slot: Slot, response: &Cqe) -> Sge {
        let at = self.at(self.layout.cqes_at(), slot.0, self.layout.slots, CQE_BYTES);
        let bytes = response.as_bytes();
        // SAFETY: in bounds; the slot's former response was sent, or it would not be free.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, CQE_BYTES) };
        Sge { addr: at as u64, length: CQE_BYTES as u32, lkey: self.region.lkey() }
    }

    /// In-capsule data of a capsule that has arrived.
    ///
    /// # Safety
    /// The receive completed and is not posted again while the slice lives, and no operation works on it.
    pub(super) unsafe fn in_capsule(
        &mut self,
        receive: Receive,
        offset: u32,
        length: u32,
    ) -> &mut [u8] {
        self.check(offset, length);
        let at = self.data(receive).wrapping_add(offset as usize);
        // SAFETY: in bounds as checked, exclusive as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(at, length as usize) }
    }

    /// In-capsule data of a capsule that has arrived, for storage.
    ///
    /// # Safety
    /// The receive completed and is not posted again, nor the area dropped, until the operation that carries
    /// the span is over; nobody else reads or writes it meanwhile.
    pub(super) unsafe fn span(&self, receive: Receive, offset: u32, length: u32) -> Span {
        self.check(offset, length);
        // SAFETY: in bounds as checked; the rest is the caller's promise.
        unsafe { Span::new(self.data(receive).wrapping_add(offset as usize), length) }
    }

    fn check(&self, offset: u32, length: u32) {
        let end = u64::from(offset) + u64::from(length);
        assert!(end <= self.layout.in_capsule.into(), "in-capsule data was checked on arrival");
    }

    fn data(&self, receive: Receive) -> *mut u8 {
        self.at(0, receive.0, self.layout.receives, self.layout.stride())
    }

    fn sqe(&self, receive: Receive) -> *mut u8 {
        self.at(self.layout.sqes_at(), receive.0, self.layout.receives, SQE_BYTES)
    }

    fn at(&self, array: usize, index: u32, count: u32, stride: usize) -> *mut u8 {
        assert!(index < count);
        self.memory.base.as_ptr().wrapping_add(array + index as usize * stride)
    }
}

/// Anonymous memory.
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: an address range that only its owner uses.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(length: usize) -> io::Result<Self> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE)?
        };
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        Ok(Self { base, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if deliberate_bugs::has(Bug::AcknowledgeEarly) || deliberate_bugs::has(Bug::LoseAbort) {
            // Operations that nobody knows of may still use it.
            return;
        }
        // SAFETY: the mapping made in `new`; nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

//! Registered memory of one connection, for command capsules and responses.
#![expect(unsafe_code, reason = "maps memory that a device writes, and reads it")]

use std::io;
use std::ptr::{self, NonNull};

use ::rdma::{Access, Mem, MemoryRegion, Provider, Registered, Sge};
use nvme_proto::{Cqe, IntoBytes, Sqe};
use rustix::mm::{MapFlags, ProtFlags};

use crate::backend::Span;
use crate::core_context::SlotId;
use crate::core_context::pool::UNIT_BYTES;
use crate::deliberate_bugs::{self, Bug};
use crate::limits::UNCONNECTED_RECEIVES;
use crate::transport::rdma::connection::request::Receive;

const SQE_BYTES: usize = size_of::<Sqe>();
const CQE_BYTES: usize = size_of::<Cqe>();

/// Numbers and sizes that determine the memory of a connection: receive buffers and request slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AreaLayout {
    pub(super) receives: u32,
    pub(super) slots: u32,
    /// Maximum in-capsule data of one command, in bytes.
    pub(super) in_capsule: u32,
}

impl AreaLayout {
    /// Distance in bytes between the in-capsule data of successive receives: whole pages, so that
    /// storage can write data to the medium from where it arrived.
    fn stride(&self) -> usize {
        (self.in_capsule as usize).next_multiple_of(UNIT_BYTES)
    }

    fn sqes_at(&self) -> usize {
        self.receives as usize * self.stride()
    }

    fn cqes_at(&self) -> usize {
        self.sqes_at() + self.receives as usize * SQE_BYTES
    }

    /// Layout of the part that exists from the start.
    fn first(&self) -> Self {
        let receives = self.receives.min(UNCONNECTED_RECEIVES);
        Self { receives, slots: self.slots.min(2 * receives), ..*self }
    }

    /// Layout of the part that is added when Connect succeeds.
    fn rest(&self) -> Self {
        let first = self.first();
        let (receives, slots) = (self.receives - first.receives, self.slots - first.slots);
        Self { receives, slots, ..*self }
    }

    fn bytes(&self) -> usize {
        (self.cqes_at() + self.slots as usize * CQE_BYTES).next_multiple_of(UNIT_BYTES)
    }
}

/// Registered memory of one connection: a small part, and the rest once Connect succeeds.
pub(super) struct Area<P: Provider> {
    first: AreaPart<P>,
    rest: Option<AreaPart<P>>,
    /// Layout of both parts together.
    layout: AreaLayout,
}

impl<P: Provider> Area<P> {
    /// Maps and registers the part that exists until Connect succeeds.
    ///
    /// # Errors
    /// The error of `mmap` or of the registration.
    pub(super) fn new(device: &P::Device, layout: AreaLayout) -> io::Result<Self> {
        Ok(Self { first: AreaPart::new(device, layout.first())?, rest: None, layout })
    }

    /// Maps and registers the rest, when Connect succeeds.
    ///
    /// # Errors
    /// The error of `mmap` or of the registration.
    pub(super) fn grow(&mut self, device: &P::Device) -> io::Result<()> {
        let rest = self.layout.rest();
        if self.rest.is_none() && rest.slots > 0 {
            self.rest = Some(AreaPart::new(device, rest)?);
        }
        Ok(())
    }

    /// Layout of both parts together, even before it has grown.
    pub(super) fn layout(&self) -> AreaLayout {
        self.layout
    }

    /// Number of receive buffers that exist now.
    pub(super) fn receives(&self) -> u32 {
        self.first.layout.receives + self.rest.as_ref().map_or(0, |rest| rest.layout.receives)
    }

    /// Number of request slots whose responses are in the first part.
    pub(super) fn first_slots(&self) -> u32 {
        self.first.layout.slots
    }

    /// Returns the scatter list of a receive (the entry, then data on a separate page) and its
    /// length.
    pub(super) fn receive_sges(&self, receive: Receive) -> ([Sge; 2], usize) {
        let (part, receive) = self.part(receive);
        part.receive_sges(receive)
    }

    /// Returns the submission queue entry of a capsule that has arrived.
    pub(super) fn entry(&self, receive: Receive) -> Sqe {
        let (part, receive) = self.part(receive);
        part.entry(receive)
    }

    /// Writes the response of a slot and returns its scatter/gather element.
    pub(super) fn set_response(&mut self, slot: SlotId, response: &Cqe) -> Sge {
        match slot.0.checked_sub(self.first.layout.slots) {
            None => self.first.set_response(slot, response),
            Some(at) => {
                let rest = self.rest.as_mut().expect("its slots are used when it is there");
                rest.set_response(SlotId(at), response)
            }
        }
    }

    /// Returns in-capsule data of a capsule that has arrived; `offset` and `length` in bytes.
    ///
    /// # Safety
    /// The receive completed and is not posted again while the slice lives, and no operation uses
    /// it.
    pub(super) unsafe fn in_capsule(
        &mut self,
        receive: Receive,
        offset: u32,
        length: u32,
    ) -> &mut [u8] {
        let (part, receive) = self.part(receive);
        // SAFETY: promised by the caller, who has exclusive use of the area.
        unsafe { part.in_capsule(receive, offset, length) }
    }

    /// Returns in-capsule data of a capsule that has arrived, as memory for a storage operation.
    ///
    /// # Safety
    /// The receive completed and is not posted again, nor the area dropped, until the operation
    /// with the span has ended; nothing else reads or writes it until then.
    pub(super) unsafe fn span(&self, receive: Receive, offset: u32, length: u32) -> Span {
        let (part, receive) = self.part(receive);
        // SAFETY: the caller's promise.
        unsafe { part.span(receive, offset, length) }
    }

    /// Returns the part that contains a receive, and the index of the receive in that part.
    fn part(&self, receive: Receive) -> (&AreaPart<P>, Receive) {
        match receive.0.checked_sub(self.first.layout.receives) {
            None => (&self.first, receive),
            Some(at) => {
                (self.rest.as_ref().expect("its receives are posted when it is there"), Receive(at))
            }
        }
    }
}

/// Registered mapping: in-capsule data and a submission queue entry for each receive, then a
/// completion queue entry for each request slot.
struct AreaPart<P: Provider> {
    layout: AreaLayout,
    /// Local key (lkey) of the mapping.
    lkey: u32,
    /// Distance in bytes between the in-capsule data of successive receives.
    stride: usize,
    /// Offsets in bytes of the submission and the completion queue entries.
    sqes_at: usize,
    cqes_at: usize,
    memory: Registered<P, Mapping>,
}

impl<P: Provider> AreaPart<P> {
    /// Maps the memory and registers it with the device.
    ///
    /// # Errors
    /// The error of `mmap` or of the registration.
    fn new(device: &P::Device, layout: AreaLayout) -> io::Result<Self> {
        let memory = Mapping::new(layout.bytes())?;
        let host = Mem::Host { addr: memory.base.as_ptr(), length: memory.length };
        // SAFETY: the place is that of the mapping, and only raw accesses reach it.
        let memory = unsafe { Registered::<P, _>::new(device, memory, host, Access::LOCAL_WRITE) }?;
        let (stride, lkey) = (layout.stride(), memory.region().lkey());
        let (sqes_at, cqes_at) = (layout.sqes_at(), layout.cqes_at());
        Ok(Self { layout, lkey, stride, sqes_at, cqes_at, memory })
    }

    /// Returns the scatter list of a receive (the entry, then data on a separate page) and its
    /// length.
    fn receive_sges(&self, receive: Receive) -> ([Sge; 2], usize) {
        let lkey = self.lkey;
        let entry = Sge { addr: self.sqe(receive) as u64, length: SQE_BYTES as u32, lkey };
        let data = Sge { addr: self.data(receive) as u64, length: self.layout.in_capsule, lkey };
        ([entry, data], if self.layout.in_capsule == 0 { 1 } else { 2 })
    }

    /// Returns the submission queue entry of a capsule that has arrived.
    fn entry(&self, receive: Receive) -> Sqe {
        // SAFETY: in bounds by construction; the receive completed, so the device does not write it
        // until it is posted again; any bytes are an entry.
        unsafe { ptr::read_unaligned(self.sqe(receive).cast()) }
    }

    /// Writes the response of a slot and returns its scatter/gather element.
    fn set_response(&mut self, slot: SlotId, response: &Cqe) -> Sge {
        let at = self.at(self.cqes_at, slot.0, self.layout.slots, CQE_BYTES);
        let bytes = response.as_bytes();
        // SAFETY: in bounds; the slot's former response was sent, or it would not be free.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at, CQE_BYTES) };
        Sge { addr: at as u64, length: CQE_BYTES as u32, lkey: self.lkey }
    }

    /// Returns in-capsule data of a capsule that has arrived; `offset` and `length` in bytes.
    ///
    /// # Safety
    /// The receive completed and is not posted again while the slice lives, and no operation uses
    /// it.
    #[expect(
        clippy::mut_from_ref,
        reason = "the slice is of the mapping, which the caller has to itself"
    )]
    unsafe fn in_capsule(&self, receive: Receive, offset: u32, length: u32) -> &mut [u8] {
        self.check(offset, length);
        let at = self.data(receive).wrapping_add(offset as usize);
        // SAFETY: in bounds as checked, exclusive as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(at, length as usize) }
    }

    /// Returns in-capsule data of a capsule that has arrived, as memory for a storage operation.
    ///
    /// # Safety
    /// The receive completed and is not posted again, nor the area dropped, until the operation
    /// with the span has ended; nothing else reads or writes it until then.
    unsafe fn span(&self, receive: Receive, offset: u32, length: u32) -> Span {
        self.check(offset, length);
        // SAFETY: in bounds as checked; the rest is the caller's promise.
        unsafe { Span::new(self.data(receive).wrapping_add(offset as usize), length) }
    }

    fn check(&self, offset: u32, length: u32) {
        let end = u64::from(offset) + u64::from(length);
        assert!(end <= self.layout.in_capsule.into(), "in-capsule data was checked on arrival");
    }

    fn data(&self, receive: Receive) -> *mut u8 {
        self.at(0, receive.0, self.layout.receives, self.stride)
    }

    fn sqe(&self, receive: Receive) -> *mut u8 {
        self.at(self.sqes_at, receive.0, self.layout.receives, SQE_BYTES)
    }

    fn at(&self, array: usize, index: u32, count: u32, stride: usize) -> *mut u8 {
        assert!(index < count);
        self.memory.memory().base.as_ptr().wrapping_add(array + index as usize * stride)
    }
}

/// Anonymous memory mapping, which is unmapped when dropped.
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
        if deliberate_bugs::has(Bug::AcknowledgeEarly) || deliberate_bugs::has(Bug::DropAbort) {
            // Operations that outlive their connection, because of these bugs, may still use it.
            return;
        }
        // SAFETY: the mapping made in `new`; nothing refers to it now.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_begins_with_little_memory() {
        let all = AreaLayout { receives: 128, slots: 256, in_capsule: 4096 };
        let (first, rest) = (all.first(), all.rest());
        assert!(first.bytes() <= 3 * UNIT_BYTES, "{}", first.bytes());
        assert_eq!((first.receives + rest.receives, first.slots + rest.slots), (128, 256));
        let least = AreaLayout { receives: 2, slots: 4, in_capsule: 0 };
        assert_eq!((least.first(), least.rest().slots), (least, 0));
    }
}

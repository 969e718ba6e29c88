//! Memory of the capsules of a queue.
#![expect(unsafe_code, reason = "registers its memory and copies capsules to and from it")]

use std::io;
use std::ptr;

use nvme_proto::nvm::ListedRange;
use nvme_proto::{Cqe, FromBytes, IntoBytes, Sqe};
use rdma::{Access, Mem, MemoryRegion, Provider, Registered, Sge};

use crate::engine::limits::MAX_LISTED_RANGES;
use crate::memory::pages::Pages;

/// Bytes of a submission queue entry.
const SQE_BYTES: usize = size_of::<Sqe>();
/// Bytes of a response capsule.
pub(crate) const CQE_BYTES: usize = size_of::<Cqe>();

/// Most bytes of a list of ranges.
const LIST_BYTES: usize = MAX_LISTED_RANGES as usize * size_of::<ListedRange>();

/// Memory of the command capsules of all slots, followed by that of the response capsules, and of
/// the lists of ranges, which are on pages of their own where none is used.
pub(crate) struct CapsuleMemory<P: Provider> {
    memory: Registered<P, Pages>,
    slots: usize,
}

impl<P: Provider> CapsuleMemory<P> {
    pub(crate) fn new(device: &P::Device, slots: usize) -> io::Result<Self> {
        let pages = Pages::new(slots * (SQE_BYTES + CQE_BYTES + LIST_BYTES))?;
        let memory = Mem::Host { addr: pages.address().as_ptr(), length: pages.length() };
        // SAFETY: the place is that of the pages; no remote access is given.
        let memory = unsafe { Registered::new(device, pages, memory, Access::LOCAL_WRITE) }?;
        Ok(Self { memory, slots })
    }

    /// Writes the capsule of a slot, whose previous command has its response.
    pub(crate) fn write_command(&mut self, index: u16, sqe: &Sqe) -> Sge {
        let offset = usize::from(index) * SQE_BYTES;
        assert!(usize::from(index) < self.slots);
        // SAFETY: within the mapping (checked); what a device reads of a capsule whose slot is free
        // is of no account.
        unsafe {
            let to = self.memory.memory().address().as_ptr().add(offset);
            ptr::copy_nonoverlapping(sqe.as_bytes().as_ptr(), to, SQE_BYTES);
        }
        self.sge(offset, SQE_BYTES)
    }

    /// Writes the list of ranges behind the capsule of a slot.
    ///
    /// # Panics
    /// There are more than [`MAX_LISTED_RANGES`].
    pub(crate) fn write_list(&mut self, index: u16, list: &[ListedRange]) -> Sge {
        let bytes = list.as_bytes();
        let lists_at = self.slots * (SQE_BYTES + CQE_BYTES);
        let offset = lists_at + usize::from(index) * LIST_BYTES;
        assert!(usize::from(index) < self.slots && bytes.len() <= LIST_BYTES);
        // SAFETY: as in `write_command`.
        unsafe {
            let to = self.memory.memory().address().as_ptr().add(offset);
            ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        self.sge(offset, bytes.len())
    }

    /// Returns the response in a buffer whose receive has completed.
    pub(crate) fn read_response(&self, index: u16) -> Cqe {
        let mut bytes = [0; CQE_BYTES];
        assert!(usize::from(index) < self.slots);
        // SAFETY: within the mapping (checked); the receive completed and the next is not posted
        // yet.
        unsafe {
            let from = self.memory.memory().address().as_ptr().add(self.response_offset(index));
            ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), CQE_BYTES);
        }
        Cqe::read_from_bytes(&bytes).expect("sixteen bytes are an entry")
    }

    pub(crate) fn response_sge(&self, index: u16) -> Sge {
        self.sge(self.response_offset(index), CQE_BYTES)
    }

    fn response_offset(&self, index: u16) -> usize {
        self.slots * SQE_BYTES + usize::from(index) * CQE_BYTES
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        let addr = self.memory.memory().address().addr().get() as u64 + offset as u64;
        Sge { addr, length: length as u32, lkey: self.memory.region().lkey() }
    }
}

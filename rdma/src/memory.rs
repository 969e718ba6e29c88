//! Memory regions and memory windows, and the access that they grant.
#![expect(unsafe_code, reason = "ties memory to its registration")]

use core::mem::ManuallyDrop;
use core::ops::BitOr;
use std::io;
use std::os::fd::BorrowedFd;

use crate::{Device, Op, Provider};

/// The access that a region or a window grants: the values of `enum ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Local read only: sends and RDMA WRITEs of ours may read it, the peer has no access.
    pub const NONE: Self = Self(0);
    /// Receives and RDMA READs of ours may land here.
    pub const LOCAL_WRITE: Self = Self(1);
    /// The peer may RDMA WRITE here; needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Self = Self(2);
    /// The peer may RDMA READ from here.
    pub const REMOTE_READ: Self = Self(4);
    /// Memory windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(16);

    /// Whether all of `other` is included.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The access with these bits.
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// The bits, as in `ibv_access_flags`.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl BitOr for Access {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Memory to register, in the host or in a device.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Mem<'a> {
    /// Any mapped host memory: the heap, mmap, huge pages, io_uring fixed buffers.
    Host {
        /// Address of the first byte, which need not be aligned.
        addr: *mut u8,
        /// Length in bytes from `addr`.
        length: usize,
    },
    /// A dma-buf (device memory), addressed at `iova` in work requests.
    DmaBuf {
        /// File descriptor of the dma-buf, borrowed for the registration only.
        fd: BorrowedFd<'a>,
        /// Where in it to begin, in bytes.
        offset: u64,
        /// Length in bytes from `offset`.
        length: usize,
        /// The address that work requests give its first byte.
        iova: u64,
    },
}

/// Names a registered region in an [`Op::Bind`]. Opaque to callers; meaningful to its device only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionHandle(pub u64);

/// Names a memory window in an [`Op::Bind`]. Opaque to callers; meaningful to its device only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowHandle(pub u64);

/// Registered memory. Once it is deregistered no byte of the memory is read or written through it,
/// requests in flight included. Dropping it deregisters as well, but does not tell when the device
/// refuses: [`Registered`] keeps the memory then.
pub trait MemoryRegion: Send + Sync + Sized {
    /// The key for [`crate::Sge::lkey`].
    fn lkey(&self) -> u32;
    /// The key to give to a peer.
    fn rkey(&self) -> u32;
    /// Its name in an [`Op::Bind`].
    fn handle(&self) -> RegionHandle;
    /// Deregisters the memory, so that its keys become invalid.
    ///
    /// # Errors
    /// The device refused, so that it may still read and write the memory, which must stay mapped
    /// for the rest of the process.
    fn deregister(self) -> Result<(), StillRegistered>;
}

/// The device refused to deregister memory. The provider has logged why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRegistered;

/// Memory that is freed only after its device has deregistered it, and leaked if the device refuses
/// to.
pub struct Registered<P: Provider, M> {
    region: ManuallyDrop<P::Region>,
    memory: ManuallyDrop<M>,
}

impl<P: Provider, M> Registered<P, M> {
    /// Registers `place`, which `memory` owns.
    ///
    /// # Errors
    /// As [`Device::register`] returns them; `memory` is dropped then.
    ///
    /// # Safety
    /// The place stays mapped until `memory` is dropped, wherever that is moved meanwhile. Else as
    /// for [`Device::register`].
    pub unsafe fn new(
        device: &P::Device,
        memory: M,
        place: Mem<'_>,
        access: Access,
    ) -> io::Result<Self> {
        // SAFETY: `memory` is dropped only after the region was deregistered.
        let region = unsafe { device.register(place, access) }?;
        Ok(Self::from_parts(region, memory))
    }

    /// A registration of what `memory` owns.
    pub(crate) fn from_parts(region: P::Region, memory: M) -> Self {
        Self { region: ManuallyDrop::new(region), memory: ManuallyDrop::new(memory) }
    }

    /// The registration, for its keys.
    pub fn region(&self) -> &P::Region {
        &self.region
    }

    /// The memory, which stays registered while it is borrowed.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

impl<P: Provider, M> Drop for Registered<P, M> {
    fn drop(&mut self) {
        // SAFETY: both are taken here only, and nothing uses them afterwards.
        unsafe {
            if ManuallyDrop::take(&mut self.region).deregister().is_ok() {
                ManuallyDrop::drop(&mut self.memory);
            }
        }
    }
}

/// A type-2 memory window: grants part of a region to the peer of one queue pair, until it is
/// invalidated by either side.
pub trait MemoryWindow<P: Provider>: Send {
    /// The key that the latest [`MemoryWindow::bind`] gave it.
    fn rkey(&self) -> u32;

    /// The operation that opens `length` bytes of `region` at `addr` under a fresh key, which
    /// [`MemoryWindow::rkey`] returns from now on. Push it on the queue pair whose peer is to use
    /// it; it takes effect before later requests of that queue. A window must be invalid (new or
    /// invalidated) when the bind executes. After a bind that failed or was flushed, the window's
    /// key in the device is not known (rxe keeps the old one and compares it): drop the window.
    fn bind(&mut self, region: &P::Region, addr: u64, length: u64, access: crate::Access) -> Op;
}

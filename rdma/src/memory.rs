//! Memory regions and memory windows, and the access that they grant.

use core::ops::BitOr;
use std::os::fd::BorrowedFd;

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

/// Names a registered region in an [`Op::Bind`](crate::Op::Bind). Opaque to callers; meaningful to
/// its device only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionHandle(pub u64);

/// Names a memory window in an [`Op::Bind`](crate::Op::Bind). Opaque to callers; meaningful to its
/// device only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowHandle(pub u64);

/// The device refused to deregister memory. The provider has logged why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRegistered;

//! Memory regions and memory windows, and the access that they grant.

use core::ops::BitOr;
use std::os::fd::BorrowedFd;

/// The access that a region or a window grants: the values of `enum ibv_access_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// Local read only: our sends and RDMA WRITEs may read it, the peer has no access.
    pub const NONE: Self = Self(0);
    /// Our receives and RDMA READs may write here.
    pub const LOCAL_WRITE: Self = Self(1);
    /// The peer may RDMA WRITE here; needs [`Access::LOCAL_WRITE`].
    pub const REMOTE_WRITE: Self = Self(2);
    /// The peer may RDMA READ from here.
    pub const REMOTE_READ: Self = Self(4);
    /// Memory windows may be bound to the region.
    pub const WINDOW_BIND: Self = Self(16);

    /// Whether all flags of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The access with these bits of `ibv_access_flags`.
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

/// Memory to register: host memory or a dma-buf.
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
        /// Offset in the dma-buf of the first byte to register.
        offset: u64,
        /// Length in bytes from `offset`.
        length: usize,
        /// The address that work requests give its first byte.
        iova: u64,
    },
}

/// Identifies a registered region in an [`Op::Bind`](crate::Op::Bind). The value is opaque and
/// valid for its device only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionHandle(pub u64);

/// Identifies a memory window in an [`Op::Bind`](crate::Op::Bind). The value is opaque and valid
/// for its device only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowHandle(pub u64);

/// Error of a deregistration that the device refused. The provider has logged the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StillRegistered;

//! Access to the caller's memory by keys.

use thiserror::Error;

use crate::Qpn;
use crate::rc::BindWindow;

/// The caller's regions and windows. This crate refers to memory by key and address and never holds
/// a pointer.
///
/// A region or window may be invalidated between two calls, so [`Memory::place`] checks again.
pub trait Memory {
    /// Checks that `lkey` grants our own requests access to `length` bytes at `addr`. `length` is
    /// never 0.
    ///
    /// # Errors
    /// The key does not cover the range, or does not allow the access.
    fn check_local(
        &self,
        lkey: u32,
        addr: u64,
        length: u32,
        access: LocalAccess,
    ) -> Result<(), AccessError>;

    /// Checks that `rkey` grants the peer of our queue pair `qpn` access to `length` bytes at
    /// `addr`. `length` is never 0.
    ///
    /// # Errors
    /// The key does not cover the range, or does not allow the access.
    fn check_remote(
        &self,
        qpn: Qpn,
        rkey: u32,
        addr: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessError>;

    /// Writes `payload` to `addr` after checking that `key` grants write access; writes all or
    /// nothing. Called before the acknowledgement or completion of the payload. `payload` is never
    /// empty.
    ///
    /// # Errors
    /// The key does not grant the access; nothing was written.
    fn place(&mut self, key: MemoryKey, addr: u64, payload: &[u8]) -> Result<(), AccessError>;

    /// Binds a memory window for the peer of our queue pair `qpn`.
    ///
    /// # Errors
    /// There is no such window or region, the window is already bound, or the region does not grant
    /// the access.
    fn bind(&mut self, qpn: Qpn, bind: &BindWindow) -> Result<(), AccessError>;

    /// Invalidates the memory window `rkey` that is bound for our queue pair `qpn`.
    ///
    /// # Errors
    /// The key is not that of such a window; regions are never invalidated.
    fn invalidate(&mut self, qpn: Qpn, rkey: u32) -> Result<(), AccessError>;
}

/// A key with which memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKey {
    /// A local key in a request of ours.
    Local {
        /// Local key of the region.
        lkey: u32,
    },
    /// A remote key in a request of the peer.
    Remote {
        /// Our queue pair, since a window grants access only to the peer of one.
        qpn: Qpn,
        /// Remote key of the region or window.
        rkey: u32,
    },
}

/// The local memory access of one of our requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// The request sends data from the memory.
    Read,
    /// The request places received or read data in the memory.
    Write,
}

/// The access of a peer's request to our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// An RDMA READ from the memory.
    Read,
    /// An RDMA WRITE to the memory.
    Write,
}

/// Error of an access check: the key is unknown, belongs to another protection domain or queue
/// pair, does not cover the whole range, or does not grant the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the key does not open the memory for this")]
pub struct AccessError;

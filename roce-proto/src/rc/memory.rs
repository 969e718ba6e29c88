//! The caller's memory, named by keys.

use thiserror::Error;

use crate::Qpn;
use crate::rc::BindWindow;

/// The region table and the memory behind it. The engine names memory by key and address and never
/// holds a pointer.
///
/// A region or window may vanish between any two calls, so [`Memory::place`] checks for itself.
pub trait Memory {
    /// Whether `lkey` opens `length` bytes at `addr` to our own work requests. Never called for no
    /// bytes.
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

    /// Whether `rkey` opens `length` bytes at `addr` to the peer of our queue pair `qpn`. Never
    /// called for no bytes.
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

    /// Copies `payload` to `addr` behind `key`, after checking that the key opens it for writing;
    /// all or nothing. Called before the acknowledgement and the completion leave; never for no
    /// bytes.
    ///
    /// # Errors
    /// The key does not open it; nothing was written.
    fn place(&mut self, key: MemoryKey, addr: u64, payload: &[u8]) -> Result<(), AccessError>;

    /// Binds a memory window for the peer of our queue pair `qpn`.
    ///
    /// # Errors
    /// There is no such window or region, the window is bound, or the region does not allow it.
    fn bind(&mut self, qpn: Qpn, bind: &BindWindow) -> Result<(), AccessError>;

    /// Invalidates the memory window `rkey` that is bound for our queue pair `qpn`.
    ///
    /// # Errors
    /// The key is no such window; an ordinary region is never invalidated.
    fn invalidate(&mut self, qpn: Qpn, rkey: u32) -> Result<(), AccessError>;
}

/// A key that opens memory, either to our own requests or to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKey {
    /// A local key of a work request of ours.
    Local {
        /// Local key of the region.
        lkey: u32,
    },
    /// A remote key that the peer named.
    Remote {
        /// Our queue pair: windows are open to the peer of one only.
        qpn: Qpn,
        /// Remote key of the region or window.
        rkey: u32,
    },
}

/// How a work request of our side uses local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// The request sends bytes from the memory.
    Read,
    /// The request receives or reads bytes into the memory.
    Write,
}

/// How a request of the peer uses our memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteAccess {
    /// An RDMA READ from the memory.
    Read,
    /// An RDMA WRITE to the memory.
    Write,
}

/// A key does not open the memory for this: it is unknown, belongs to another protection domain or
/// queue pair, does not cover all of the range, or does not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the key does not open the memory for this")]
pub struct AccessError;

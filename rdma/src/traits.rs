//! The traits of a provider of RDMA, which name each other.
#![expect(unsafe_code, reason = "declares methods that take memory by address")]

use core::time::Duration;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use crate::Time;
use crate::cm::{CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectFailure};
use crate::device::{Caps, DeviceEvent, DeviceStats};
use crate::group::{GroupConfig, GroupStats, PushError, QpConfig, QpKey, WakeFor};
use crate::memory::{Access, Mem, RegionHandle, StillRegistered};
use crate::work::{Op, RecvWr, SendWr, Wc};

/// A way to do RDMA: a set of types that belong together. How a device is opened differs between
/// providers and is not part of the interface.
pub trait Provider: Sized + 'static {
    /// Name of the provider as users type it: `verbs`, `soft`, `shm`, `sim`.
    const NAME: &'static str;
    /// True if peers reach each other through memory that they share, which only peers on one
    /// machine can.
    const SHARES_MEMORY: bool = false;
    /// A device as seen through one local address.
    type Device: Device<Self>;
    /// Registered memory; dropping it deregisters.
    type Region: MemoryRegion + 'static;
    /// A type-2 memory window.
    type Window: MemoryWindow<Self> + 'static;
    /// A completion queue and its queue pairs.
    type Group: Group<Self>;
    /// Names a group to other threads.
    type GroupHandle: Clone + Send + Sync + 'static;
    /// A queue pair on its way from the connection manager to its group.
    type NewQp: Send + 'static;
    /// The connection manager, one per device.
    type Cm: ConnectionManager<Self>;
}

/// An RDMA device as seen through one local address, and a protection domain of it. Cheap to clone;
/// clones name the same device and domain.
///
/// The access of a peer is bounded by its queue pair's domain: a key of another domain is refused
/// with
/// [`crate::WcStatus::REMOTE_ACCESS_ERROR`]. Peers that are not to reach each other's memory get a
/// domain each.
pub trait Device<P: Provider>: Clone + Send + Sync + 'static {
    /// Limits and features of the device.
    fn caps(&self) -> &Caps;

    /// The local address that it serves.
    fn local_ip(&self) -> IpAddr;

    /// Makes a handle of the device with a new, empty protection domain.
    ///
    /// # Errors
    /// The error of the system call.
    fn in_new_domain(&self) -> io::Result<Self>;

    /// Registers memory with this device, in this handle's protection domain.
    ///
    /// # Errors
    /// The error of the system call; where a resource limit is the cause the message names the
    /// limit and the fix.
    ///
    /// # Safety
    /// The memory must stay mapped until the returned region was deregistered, and for ever if the
    /// device refuses that ([`crate::Registered`] sees to both). While it is registered with remote
    /// access the peer may read or write it at any time, so it must not be reached through
    /// references that assume otherwise.
    unsafe fn register(&self, memory: Mem<'_>, access: Access) -> io::Result<P::Region>;

    /// Allocates a memory window in this handle's protection domain, not bound to anything yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] when [`Caps::memory_windows`] is false, else the error of
    /// the system call.
    fn window(&self) -> io::Result<P::Window>;

    /// Makes a group: one per core that serves this device. At most as many as the device was
    /// opened for.
    ///
    /// # Errors
    /// The error of the system call.
    fn group(&self, config: &GroupConfig) -> io::Result<P::Group>;

    /// The connection manager, once per device.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] on the second call, else the error of the system call.
    fn connection_manager(&self) -> io::Result<P::Cm>;

    /// Readable when [`Device::next_async`] has something. Once that has failed, or told of
    /// [`DeviceEvent::DeviceFatal`], nothing more is to be had, and the descriptor may stay
    /// readable.
    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The next event that belongs to no work request.
    ///
    /// # Errors
    /// The error of the system call.
    fn next_async(&self) -> io::Result<Option<DeviceEvent>> {
        Ok(None)
    }

    /// Counters of the device as a whole.
    fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}

/// Registered memory. Once it is deregistered no byte of the memory is read or written through it,
/// requests in flight included. Dropping it deregisters as well, but does not tell when the device
/// refuses: [`crate::Registered`] keeps the memory then.
pub trait MemoryRegion: Send + Sync + Sized {
    /// The key for [`crate::Sge::lkey`].
    fn lkey(&self) -> u32;
    /// The key to give to a peer.
    fn rkey(&self) -> u32;
    /// Name of the region in an [`Op::Bind`].
    fn handle(&self) -> RegionHandle;
    /// Deregisters the memory, so that its keys become invalid.
    ///
    /// # Errors
    /// The device refused, so that it may still read and write the memory, which must stay mapped
    /// for the rest of the process.
    fn deregister(self) -> Result<(), StillRegistered>;
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
    fn bind(&mut self, region: &P::Region, addr: u64, length: u64, access: Access) -> Op;
}

/// A completion queue and the queue pairs behind it; owned by one thread at a time.
///
/// Pushing queues a request in space that was preallocated; [`Group::flush`] hands everything
/// pushed to the device with at most one doorbell per queue pair. After an error each request that
/// was pushed and has not completed is reported by [`Group::poll`] with
/// [`crate::WcStatus::FLUSHED`], those the device never saw included: there is one completion path.
///
/// No method allocates, blocks or takes a lock that another thread holds for long.
pub trait Group<P: Provider>: Send {
    /// Names this group when a connection manager makes a queue pair for it; may go to other
    /// threads.
    fn handle(&self) -> P::GroupHandle;

    /// Takes over a queue pair that was made for this group.
    fn adopt(&mut self, qp: P::NewQp) -> QpKey;

    /// The queue pair's number, as in [`Wc::qpn`].
    fn qpn(&self, qp: QpKey) -> u32;

    /// The sizes that the queue pair was granted, which may differ from those asked for.
    fn granted(&self, qp: QpKey) -> QpConfig;

    /// Queues a send request. On a queue pair that is not connected yet it waits for the
    /// connection.
    ///
    /// # Errors
    /// The request was not queued.
    ///
    /// # Safety
    /// The memory behind `sges` must stay valid, and for RDMA READs unaliased, until the request
    /// completes or [`Group::release`] returns, or until the region behind its key is dropped.
    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError>;

    /// Queues a receive; allowed before the connection is accepted.
    ///
    /// # Errors
    /// The request was not queued.
    ///
    /// # Safety
    /// As for [`Group::push_send`]; the memory must be unaliased.
    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError>;

    /// Hands all that was pushed to the device.
    fn flush(&mut self, now: Time);

    /// Drives progress and reaps completions into `out`; returns how many. Zero means nothing is
    /// left to do before [`Group::deadline`] or a wake-up, provided that `out` was not empty.
    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize;

    /// When `poll` must run again at the latest, if nothing wakes [`Group::fd`] earlier.
    fn deadline(&self) -> Option<Time>;

    /// Asks for a wake-up on [`Group::fd`]. Returns whether something may have come before that
    /// causes none: then poll once more before sleeping.
    fn arm(&mut self, what: WakeFor) -> bool;

    /// Readable when there is something to poll for; `None` where a simulator drives.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Consumes the wake-up, once [`Group::fd`] was readable.
    fn acknowledge_wake(&mut self);

    /// Moves a queue pair to ERROR: its requests complete with a flush status, and from then on
    /// nothing that the peer sends for it is placed.
    fn fail(&mut self, qp: QpKey);

    /// Frees a queue pair. Once it returns, none of its requests' memory is touched and no
    /// completion of it is reported, those not yet polled included.
    fn release(&mut self, qp: QpKey);

    /// Counters since the group was made.
    fn stats(&self) -> GroupStats;
}

/// Makes and ends connections through one device; owned by one thread at a time.
///
/// Active side: `resolve`, then on [`CmEvent::Resolved`] `create_qp`, adopt it and push receives,
/// `connect`, then [`CmEvent::Established`] or a failure. Passive side: `listen`, then on
/// [`CmEvent::ConnectRequest`] `create_qp`, have its group adopt it and push receives, `accept` (or
/// `reject`). Either side ends with `disconnect` and, once the queue pair is released, `close`.
pub trait ConnectionManager<P: Provider>: Send {
    /// Listens on an NVMe-style address: the IP of the device and an RDMA-CM TCP-port-space port.
    /// Port 0 picks a free one; [`ConnectionManager::local_addr`] tells which.
    ///
    /// # Errors
    /// [`CmError::Io`] with [`io::ErrorKind::AddrInUse`] when the address has a
    /// listener.
    fn listen(&mut self, addr: SocketAddr, options: &ConnOptions) -> Result<ConnId, CmError>;

    /// Starts address and route resolution; [`CmEvent::Resolved`] or [`CmEvent::ConnectFailed`]
    /// follows.
    ///
    /// # Errors
    /// The address cannot be used at all.
    fn resolve(
        &mut self,
        now: Time,
        to: SocketAddr,
        timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, CmError>;

    /// Makes the queue pair of a connection, for `group` to adopt, in the protection domain of
    /// `domain`: it and its peer reach no memory but that of this domain.
    ///
    /// The memory of its queues: on RDMA devices all of it from the start, since their queues
    /// cannot grow. A software device has it for eight requests of each kind, and allocates the
    /// rest when more are outstanding for the first time.
    ///
    /// # Errors
    /// The error of the device; [`CmError::UnknownConnection`] when the connection has ended.
    fn create_qp(
        &mut self,
        conn: ConnId,
        group: &P::GroupHandle,
        domain: &P::Device,
        config: &QpConfig,
    ) -> Result<P::NewQp, CmError>;

    /// Asks the peer for the connection.
    ///
    /// # Errors
    /// The connection is not at that point.
    fn connect(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError>;

    /// Accepts a request. The group must have adopted the queue pair.
    ///
    /// # Errors
    /// The connection is not at that point.
    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError>;

    /// Rejects a request with reason [`crate::REJECT_CONSUMER_DEFINED`] and up to 148 bytes of
    /// private data. The connection is closed thereby.
    ///
    /// # Errors
    /// The connection is not at that point.
    fn reject(&mut self, now: Time, conn: ConnId, private: &[u8]) -> Result<(), CmError>;

    /// Starts an orderly end: the queue pair goes to ERROR (its requests are flushed), the peer is
    /// told, and [`CmEvent::Disconnected`] follows when it answered or did not within the retries.
    fn disconnect(&mut self, now: Time, conn: ConnId);

    /// Forgets a connection or a listener immediately; no event of it follows.
    fn close(&mut self, conn: ConnId);

    /// Drives the protocol and returns the next event, or `None` when there is nothing to do before
    /// [`ConnectionManager::deadline`] or a wake-up.
    fn poll(&mut self, now: Time) -> Option<CmEvent>;

    /// When `poll` must run again at the latest.
    fn deadline(&self) -> Option<Time>;

    /// Why a peer that does not answer may not, as far as this side knows.
    fn cause_of_silence(&self) -> ConnectFailure {
        ConnectFailure::Unreachable
    }

    /// Readable when there is something to poll for; `None` where a simulator drives.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// The local address of a connection or listener.
    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr>;
}

//! The traits that every RDMA provider implements: device, region, window, group and connection
//! manager.
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
use crate::write_room::WriteRoom;

/// An implementation of RDMA: the set of types that are used together. Each provider has its own
/// functions to open a device; they are not part of this interface.
pub trait Provider: Sized + 'static {
    /// Name of the provider as users type it: `verbs`, `soft`, `shm`, `sim`.
    const NAME: &'static str;
    /// True if the provider transfers data through shared memory, so that it reaches only peers on
    /// the same machine.
    const SHARES_MEMORY: bool = false;
    /// A device as seen through one local address, with a protection domain.
    type Device: Device<Self>;
    /// Registered memory; dropping it deregisters the memory.
    type Region: MemoryRegion + 'static;
    /// A type-2 memory window.
    type Window: MemoryWindow<Self> + 'static;
    /// A completion queue and its queue pairs.
    type Group: Group<Self>;
    /// A cloneable, thread-safe reference to a group, for use by the connection manager.
    type GroupHandle: Clone + Send + Sync + 'static;
    /// A queue pair that the connection manager has created and no group has adopted yet.
    type NewQp: Send + 'static;
    /// The connection manager, one per device.
    type Cm: ConnectionManager<Self>;
}

/// An RDMA device as seen through one local address, and a protection domain of it. Cheap to clone;
/// clones name the same device and domain.
///
/// A peer reaches only memory that is registered in its queue pair's protection domain: a request
/// with a key of another domain fails with [`crate::WcStatus::REMOTE_ACCESS_ERROR`]. Peers that
/// must not reach each other's memory therefore get a domain each.
pub trait Device<P: Provider>: Clone + Send + Sync + 'static {
    /// Limits and features of the device.
    fn caps(&self) -> &Caps;

    /// The local address that the device was opened for.
    fn local_ip(&self) -> IpAddr;

    /// Returns a handle of the same device with a new, empty protection domain.
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

    /// Creates a group. One per core is usual; at most as many as the device was opened for.
    ///
    /// # Errors
    /// The error of the system call.
    fn group(&self, config: &GroupConfig) -> io::Result<P::Group>;

    /// Returns the connection manager, once per device.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] on the second call, else the error of the system call.
    fn connection_manager(&self) -> io::Result<P::Cm>;

    /// File descriptor that is readable when [`Device::next_async`] has an event. Once `next_async`
    /// has failed or returned [`DeviceEvent::DeviceFatal`], no further events follow and the
    /// descriptor may stay readable: stop polling it. `None` if the provider has no asynchronous
    /// events.
    fn async_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Returns the next asynchronous event, one that belongs to no work request, if any.
    ///
    /// # Errors
    /// The error of the system call.
    fn next_async(&self) -> io::Result<Option<DeviceEvent>> {
        Ok(None)
    }

    /// Counters of the device as a whole, those of its groups not included.
    fn stats(&self) -> DeviceStats {
        DeviceStats::default()
    }
}

/// Registered memory. Once it is deregistered, no byte of the memory is read or written through it,
/// not even by requests in flight. Dropping it deregisters as well, but does not report a refusal
/// of the device; [`crate::Registered`] then leaks the memory instead of freeing it.
pub trait MemoryRegion: Send + Sync + Sized {
    /// The key for [`crate::Sge::lkey`].
    fn lkey(&self) -> u32;
    /// The key that a peer names in its RDMA READs and WRITEs.
    fn rkey(&self) -> u32;
    /// Identifies the region in an [`Op::Bind`].
    fn handle(&self) -> RegionHandle;
    /// Deregisters the memory, so that its keys become invalid.
    ///
    /// # Errors
    /// The device refused. It may still read and write the memory, which must stay mapped for the
    /// rest of the process.
    fn deregister(self) -> Result<(), StillRegistered>;
}

/// A type-2 memory window: grants the peer of one queue pair access to part of a region, until
/// either side invalidates it.
pub trait MemoryWindow<P: Provider>: Send {
    /// The key set by the latest [`MemoryWindow::bind`].
    fn rkey(&self) -> u32;

    /// Returns the operation that grants access to `length` bytes of `region` at `addr` under a new
    /// key, which [`MemoryWindow::rkey`] returns from now on. Push it on the queue pair whose peer
    /// is to use the window; it takes effect before later requests of that queue. The window must
    /// be invalid (new or invalidated) when the bind executes. After a bind that failed or was
    /// flushed, the window's key in the device is unknown (rxe keeps the old one and compares it):
    /// drop the window.
    fn bind(&mut self, region: &P::Region, addr: u64, length: u64, access: Access) -> Op;
}

/// A completion queue and the queue pairs that complete to it; owned by one thread at a time.
///
/// `push_send` and `push_recv` queue a request in preallocated space; [`Group::flush`] posts
/// everything queued to the device with at most one doorbell per queue pair. When a queue pair
/// fails, [`Group::poll`] reports each of its outstanding requests with
/// [`crate::WcStatus::FLUSHED`], including those not yet posted to the device.
///
/// No method allocates, blocks, or takes a lock that another thread may hold for long.
pub trait Group<P: Provider>: Send {
    /// Returns a reference to this group for [`ConnectionManager::create_qp`]; it may be sent to
    /// other threads.
    fn handle(&self) -> P::GroupHandle;

    /// Takes over a queue pair that was created for this group and returns its key.
    fn adopt(&mut self, qp: P::NewQp) -> QpKey;

    /// The queue pair's number, as in [`Wc::qpn`].
    fn qpn(&self, qp: QpKey) -> u32;

    /// The queue sizes of the queue pair, which may be smaller than those requested.
    fn granted(&self, qp: QpKey) -> QpConfig;

    /// Queues a send request. If the queue pair is not connected yet, the request is sent once it
    /// is.
    ///
    /// # Errors
    /// The request was not queued; [`PushError`] has the reason.
    ///
    /// # Safety
    /// The memory behind `sges` must stay valid, and for RDMA READs unaliased, until the request
    /// completes or [`Group::release`] returns, or until the region behind its key is dropped.
    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError>;

    /// Queues a receive request; allowed before the connection is accepted.
    ///
    /// # Errors
    /// The request was not queued; [`PushError`] has the reason.
    ///
    /// # Safety
    /// As for [`Group::push_send`]; the memory must be unaliased.
    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError>;

    /// Whether [`Group::write_room`] would return room for the first of `total` bytes.
    fn has_write_room(&mut self, _qp: QpKey, _total: u32) -> bool {
        false
    }

    /// Returns memory from which the provider sends, so that the caller can place there the payload
    /// of an RDMA WRITE that it would otherwise copy from registered memory: the first part of
    /// `total` bytes, in whole pages unless it is all of them. `None` if the provider has no such
    /// memory, or now not enough for `total` bytes.
    fn write_room(&mut self, _qp: QpKey, _total: u32) -> Option<WriteRoom> {
        None
    }

    /// Sends what was placed in `room` as an unsignaled RDMA WRITE, with the next flush at the
    /// latest. It precedes all requests that are pushed later, and those pushed earlier that are
    /// not posted completely. Returns false, and sends nothing, if the room is outdated: another
    /// method of the group was called since.
    fn send_room(&mut self, _qp: QpKey, _room: WriteRoom, _remote_addr: u64, _rkey: u32) -> bool {
        false
    }

    /// Posts all queued requests to the device.
    fn flush(&mut self, now: Time);

    /// Processes what is due and writes completions to `out`; returns their number. If `out` is not
    /// empty, 0 means that nothing is left to do until [`Group::deadline`] or a wake-up on
    /// [`Group::fd`].
    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize;

    /// The time by which `poll` must be called again if [`Group::fd`] does not become readable
    /// earlier; `None` for no such time.
    fn deadline(&self) -> Option<Time>;

    /// Arms [`Group::fd`] for the next completion that `what` includes. Returns true if a
    /// completion may have arrived already without a wake-up: then poll once more before sleeping.
    fn arm(&mut self, what: WakeFor) -> bool;

    /// File descriptor that is readable when `poll` has work; `None` on a simulated network.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Clears the wake-up after [`Group::fd`] became readable.
    fn acknowledge_wake(&mut self);

    /// Moves a queue pair to ERROR: its outstanding requests complete with
    /// [`crate::WcStatus::FLUSHED`], and data that the peer sends afterwards is not placed.
    fn fail(&mut self, qp: QpKey);

    /// Destroys a queue pair. Once it returns, the memory of its requests is not accessed and none
    /// of its completions is reported, including those not yet polled.
    fn release(&mut self, qp: QpKey);

    /// Counters since the group was created.
    fn stats(&self) -> GroupStats;
}

/// Establishes and closes connections through one device; owned by one thread at a time.
///
/// Active side: `resolve`; on [`CmEvent::Resolved`], `create_qp`, have its group adopt the queue
/// pair, push receives, `connect`; then [`CmEvent::Established`] or a failure follows. Passive
/// side: `listen`; on [`CmEvent::ConnectRequest`], `create_qp`, adopt, push receives, `accept` (or
/// `reject`). Both sides end with `disconnect` and, once the queue pair is released, `close`.
pub trait ConnectionManager<P: Provider>: Send {
    /// Listens on the device's IP address and a port of the RDMA-CM TCP port space, as in an
    /// NVMe-oF transport address. Port 0 picks a free one, which [`ConnectionManager::local_addr`]
    /// returns.
    ///
    /// # Errors
    /// [`CmError::Io`] with [`io::ErrorKind::AddrInUse`] when the address has a
    /// listener.
    fn listen(&mut self, addr: SocketAddr, options: &ConnOptions) -> Result<ConnId, CmError>;

    /// Starts address and route resolution; [`CmEvent::Resolved`] or [`CmEvent::ConnectFailed`]
    /// follows.
    ///
    /// # Errors
    /// No connection to this address can be started, for instance because of its address family.
    fn resolve(
        &mut self,
        now: Time,
        to: SocketAddr,
        timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, CmError>;

    /// Creates the queue pair of a connection, for `group` to adopt, in the protection domain of
    /// `domain`: requests of either side reach only memory of this domain.
    ///
    /// An RDMA device allocates the memory of the queues in full immediately, since its queues
    /// cannot grow. A software device allocates it for eight requests of each kind, and the rest
    /// when more are outstanding for the first time.
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

    /// Sends the connection request (REQ) to the peer.
    ///
    /// # Errors
    /// The connection's state does not allow it, the private data is too long, or a system call
    /// failed.
    fn connect(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError>;

    /// Accepts a connection request. The group must have adopted the queue pair.
    ///
    /// # Errors
    /// The connection's state does not allow it, the private data is too long, or a system call
    /// failed.
    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError>;

    /// Rejects a connection request with reason [`crate::REJECT_CONSUMER_DEFINED`] and up to 148
    /// bytes of private data. The connection is closed by it.
    ///
    /// # Errors
    /// The connection's state does not allow it, the private data is too long, or a system call
    /// failed.
    fn reject(&mut self, now: Time, conn: ConnId, private: &[u8]) -> Result<(), CmError>;

    /// Disconnects: the queue pair goes to ERROR (its requests are flushed) and a DREQ is sent.
    /// [`CmEvent::Disconnected`] follows when the peer has answered or the retries are used up.
    fn disconnect(&mut self, now: Time, conn: ConnId);

    /// Discards a connection or a listener immediately; no event of it follows.
    fn close(&mut self, conn: ConnId);

    /// Processes what is due and returns the next event; `None` if nothing is left to do until
    /// [`ConnectionManager::deadline`] or a wake-up on [`ConnectionManager::fd`].
    fn poll(&mut self, now: Time) -> Option<CmEvent>;

    /// The time by which `poll` must be called again; `None` for no such time.
    fn deadline(&self) -> Option<Time>;

    /// The likely reason why a peer does not answer, as far as this side can see it.
    fn cause_of_silence(&self) -> ConnectFailure {
        ConnectFailure::Unreachable
    }

    /// File descriptor that is readable when `poll` has work; `None` on a simulated network.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// The local address of a connection or listener; `None` if there is no such connection.
    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr>;
}

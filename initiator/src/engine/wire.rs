//! Interface between an engine and an RDMA provider, without the provider's types.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::nvm::ListedRange;
use nvme_proto::{Cqe, Sqe};
use rdma::{
    Access, Caps, CmEvent, ConnId, ConnOptions, ConnParams, ConnectFailure, GroupStats, Sge, Time,
    WcStatus,
};

use crate::engine::arena::QueueKey;
use crate::engine::connections::ConnectionRole;
use crate::memory::bounce::BouncePool;
use crate::memory::region::{ErasedScope, RegionSlice};
use crate::types::error::Error;

/// A device of a provider with its connection manager, and the queue pairs and capsule memory of an
/// engine's queues. [`Wire::send`] is called once for each command and [`Wire::poll`] once for many
/// completions; the calls in between stay in code that knows the provider.
pub(crate) trait Wire: Send {
    /// Returns what does not change while the device is open.
    fn facts(&self) -> &WireFacts;

    /// Creates a protection domain, for a new controller.
    fn domain(&self) -> io::Result<Domain>;

    /// Starts to resolve an address. A [`WireEvent::Connection`] has the result.
    fn resolve(
        &mut self,
        now: Time,
        to: SocketAddr,
        timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, Error>;

    /// Creates the queue pair of a queue, posts its receives, and requests its connection. After an
    /// error there is no queue pair.
    fn connect(&mut self, now: Time, new: NewQueue<'_>, params: &ConnParams) -> Result<(), Error>;

    /// Disconnects the established ones of these connections, closes the others, and releases these
    /// queues. Once it returns, no peer accesses memory through them.
    fn disconnect(
        &mut self,
        now: Time,
        queues: &[QueueKey],
        connections: &[(ConnId, ConnectionRole)],
    );

    /// Discards a connection; no event of it follows.
    fn close(&mut self, conn: ConnId);

    /// Returns the next event. If `is_idle`, events of connections are polled for only now and then
    /// without a wake-up, since that is a system call with some providers.
    fn next_event(&mut self, now: Time, is_idle: bool) -> Option<WireEvent>;

    /// Returns the likely reason why a target does not answer.
    fn cause_of_silence(&self) -> ConnectFailure;

    /// Pushes a command; returns the remote key of the memory window that was bound for it, if its
    /// data is [`Data::Window`]. After an error the queue is unusable.
    fn send(&mut self, command: Command<'_>) -> io::Result<Option<u32>>;

    /// Pushes the invalidation of the memory window of a command slot.
    fn invalidate(&mut self, queue: QueueKey, index: u16, rkey: u32) -> io::Result<()>;

    /// Appends up to `most` arrivals; false if there was nothing to process.
    fn poll(&mut self, now: Time, most: usize, arrivals: &mut Vec<Arrival>) -> bool;

    /// Posts all work requests that were pushed.
    fn flush(&mut self, now: Time);

    /// Returns when to poll again, unless a wake-up comes earlier.
    fn deadline(&self) -> Option<Time>;

    /// Enables wake-ups through the descriptors.
    fn arm(&mut self);

    /// Clears a wake-up, once a descriptor was readable.
    fn acknowledge(&mut self);

    /// Returns descriptors that become readable when there is work; none with a simulated provider.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;

    /// Returns the counters of the provider.
    fn stats(&self) -> GroupStats;
}

/// Properties of a provider and of an opened device of it.
pub(crate) struct WireFacts {
    pub(crate) provider: &'static str,
    /// Whether the provider transfers data through shared memory.
    pub(crate) shares_memory: bool,
    /// Local address that the device was opened for.
    pub(crate) address: IpAddr,
    pub(crate) caps: Caps,
}

/// A protection domain, which the connections of one controller share, and bounce chunks in it.
pub(crate) struct Domain {
    pub(crate) scope: Arc<dyn ErasedScope>,
    pub(crate) bounce: BouncePool,
}

/// A queue whose connection was resolved.
pub(crate) struct NewQueue<'a> {
    pub(crate) key: QueueKey,
    pub(crate) conn: ConnId,
    /// Most commands in flight.
    pub(crate) slots: u16,
    /// Work requests in its send queue.
    pub(crate) send_wr: u32,
    /// Protection domain of its queue pair.
    pub(crate) scope: &'a Arc<dyn ErasedScope>,
}

/// An event other than a completion.
#[expect(clippy::large_enum_variant, reason = "an event is handled before the next is taken")]
pub(crate) enum WireEvent {
    /// The device failed, and with it all queue pairs.
    DeviceFailed,
    /// The device reports that the queue pair of a queue failed.
    QueueFailed(QueueKey),
    Connection(CmEvent),
}

/// A command to send from a free slot of a queue.
pub(crate) struct Command<'a> {
    pub(crate) queue: QueueKey,
    pub(crate) index: u16,
    /// The command with its identifier, without its data pointer.
    pub(crate) sqe: Sqe,
    /// Ranges that follow the command in its capsule, as many as a command lists at most.
    pub(crate) list: &'a [ListedRange],
    pub(crate) data: Data<'a>,
    /// Whether the completion of the SEND is reported.
    pub(crate) is_reported: bool,
}

/// Data of a command, from which its SGL descriptor is built.
pub(crate) enum Data<'a> {
    /// The command transfers no data.
    None,
    /// Registered memory that the target accesses with the remote key `rkey`; `length` in bytes.
    Keyed { address: u64, length: u32, rkey: u32 },
    /// Memory of a slice to which the target has `access` through a memory window, until this
    /// command ends. The slice is registered in the domain of the queue.
    Window { slice: &'a RegionSlice, address: u64, length: u32, access: Access },
    /// Data sent in the command capsule. Its memory is in use until the SEND completes.
    InCapsule(Sge),
}

/// A completion of a queue's work request.
pub(crate) struct Arrival {
    pub(crate) queue: QueueKey,
    pub(crate) what: ArrivalKind,
}

/// Kind of an [`Arrival`]. An index is that of a command slot.
pub(crate) enum ArrivalKind {
    /// A response arrived, and its receive was posted again. `invalidated` is the remote key that
    /// the target invalidated with it.
    Response { cqe: Cqe, invalidated: Option<u32> },
    /// A reported SEND has completed.
    Sent { index: u16 },
    /// The memory window of a slot was invalidated.
    Invalidated { index: u16 },
    /// A message arrived that is no response.
    Malformed(Violation),
    /// A work request failed.
    Failed(WcStatus),
}

/// A violation of the protocol by the target, which ends the association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation(pub(crate) &'static str);

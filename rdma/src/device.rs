//! Devices and what they can do.
#![expect(unsafe_code, reason = "declares methods that take memory by address")]

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use crate::{Access, GroupConfig, Mem, Provider};

/// An RDMA device as seen through one local address, and a protection domain of it. Cheap to clone;
/// clones name the same device and domain.
///
/// The access of a peer is bounded by its queue pair's domain: a key of another one is refused with
/// [`crate::WcStatus::REMOTE_ACCESS_ERROR`]. Peers that are not to reach each other's memory get a
/// domain each.
pub trait Device<P: Provider>: Clone + Send + Sync + 'static {
    /// Its limits and features.
    fn caps(&self) -> &Caps;

    /// The local address that it serves.
    fn local_ip(&self) -> IpAddr;

    /// The same device with a protection domain that nothing belongs to yet.
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

/// The limits and features of a device. A caller clamps its requests to these limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Caps {
    /// Its name: `mlx5_0`, `soft`, ...
    pub name: String,
    /// Whether the CPU does the work.
    pub software: bool,
    /// Whether it speaks iWARP. Such a device is listed and not used: there the sink of an RDMA
    /// READ is open to the peer's writes, so that a host could write to all of the target's pool.
    pub iwarp: bool,
    /// Work requests per queue.
    pub max_wr: u32,
    /// Scatter-gather elements per work request.
    pub max_sge: u32,
    /// Entries of one completion queue; `u32::MAX` where each queue pair keeps its own completions.
    pub max_cqe: u32,
    /// RDMA READs that one of our queue pairs may have in flight.
    pub max_initiator_depth: u8,
    /// RDMA READs that one of our queue pairs may serve at once.
    pub max_responder_resources: u8,
    /// Bytes in one region.
    pub max_region_bytes: u64,
    /// Type-2 memory windows are to be had.
    pub memory_windows: bool,
    /// SEND with Invalidate is known to work.
    pub send_with_invalidate: bool,
    /// dma-bufs can be registered.
    pub dma_buf: bool,
    /// The largest path MTU that a connection through this device will use, in bytes of payload.
    pub max_path_mtu: u32,
    /// Packets of one length that follow each other leave for little more than the price of one, so
    /// messages that are cut into equal packets are the cheaper ones.
    pub trains: bool,
}

impl Caps {
    /// A software device's capabilities, to be adjusted by its provider.
    pub fn software(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            software: true,
            iwarp: false,
            max_wr: 16 * 1024,
            max_sge: 16,
            // Each queue pair keeps its own.
            max_cqe: u32::MAX,
            max_initiator_depth: 16,
            max_responder_resources: 16,
            max_region_bytes: u64::MAX,
            memory_windows: true,
            send_with_invalidate: true,
            dma_buf: false,
            max_path_mtu: 4096,
            trains: true,
        }
    }
}

/// Something happened to the device, not to a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The device is gone or unusable.
    DeviceFatal,
    /// The port came up.
    PortUp,
    /// The port went down.
    PortDown,
    /// A queue pair failed without a completion to say so.
    QpFatal {
        /// The number of the queue pair, as in [`crate::Wc::qpn`].
        qpn: u32,
    },
    /// A completion queue overran.
    CqError,
    /// Anything else, by its verbs number.
    Other(u32),
}

/// Counters of a device that belong to no group. A device that does not count leaves zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Connection-management datagrams (MADs) sent, retries included.
    pub mads_sent: u64,
    /// Connection-management datagrams (MADs) received and handed to the connection manager.
    pub mads_received: u64,
    /// Datagrams that were no connection-management message for us.
    pub mads_dropped: u64,
    /// Memory regions and windows that exist now.
    pub regions: u64,
    /// Regions that the device refused to deregister. Their memory is never freed.
    pub leaked_regions: u64,
    /// Queue pairs that exist now.
    pub queue_pairs: u64,
}

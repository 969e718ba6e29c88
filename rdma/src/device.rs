//! Limits, features, events and counters of devices.

/// The limits and features of a device. A caller clamps its requests to these limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Caps {
    /// Name of the device: `mlx5_0`, `soft`, ...
    pub name: String,
    /// Whether the CPU does the work: a software provider, rxe or siw.
    pub software: bool,
    /// Whether the transport is iWARP. Such a device is listed but not used: in iWARP the local
    /// buffer of an RDMA READ is open to RDMA WRITEs of the peer, so a host could write to the
    /// target's whole buffer pool.
    pub iwarp: bool,
    /// Maximum number of work requests in a queue.
    pub max_wr: u32,
    /// Maximum number of scatter-gather elements of a work request.
    pub max_sge: u32,
    /// Maximum number of entries in a completion queue; `u32::MAX` if each queue pair keeps its own
    /// completions.
    pub max_cqe: u32,
    /// RDMA READs that one queue pair may have in flight.
    pub max_initiator_depth: u8,
    /// RDMA READs of the peer that one queue pair may serve concurrently.
    pub max_responder_resources: u8,
    /// Maximum bytes of one memory region.
    pub max_region_bytes: u64,
    /// Whether type-2 memory windows are supported and not known to be faulty.
    pub memory_windows: bool,
    /// Whether SEND with Invalidate is supported and not known to be faulty.
    pub send_with_invalidate: bool,
    /// Whether dma-bufs can be registered.
    pub dma_buf: bool,
    /// The largest path MTU of a connection through this device, in bytes of payload.
    pub max_path_mtu: u32,
    /// Whether consecutive packets of equal length are sent as one batch (UDP GSO) at little more
    /// than the cost of one packet, so that messages cut into equal packets are cheaper.
    pub trains: bool,
}

impl Caps {
    /// The default capabilities of a software device, for its provider to adjust.
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

/// An asynchronous event of the device, as from `ibv_get_async_event`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceEvent {
    /// The device is gone or unusable.
    DeviceFatal,
    /// The port came up.
    PortUp,
    /// The port went down.
    PortDown,
    /// A queue pair failed without a completion that reports it.
    QpFatal {
        /// The number of the queue pair, as in [`crate::Wc::qpn`].
        qpn: u32,
    },
    /// A completion queue overran.
    CqError,
    /// Any other event, by its value in `enum ibv_event_type`.
    Other(u32),
}

/// Counters of a device that belong to no group. A device leaves those that it does not count at
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Connection-management datagrams (MADs) sent, retries included.
    pub mads_sent: u64,
    /// Connection-management datagrams (MADs) received and handed to the connection manager.
    pub mads_received: u64,
    /// Datagrams dropped because they were no connection-management message for this device.
    pub mads_dropped: u64,
    /// Memory regions and windows that exist now.
    pub regions: u64,
    /// Regions that the device refused to deregister. Their memory is never freed.
    pub leaked_regions: u64,
    /// Queue pairs that exist now.
    pub queue_pairs: u64,
}

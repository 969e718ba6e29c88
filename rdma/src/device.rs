//! Devices and what they can do.

/// The limits and features of a device. A caller clamps its requests to these limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Caps {
    /// Name of the device: `mlx5_0`, `soft`, ...
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
    /// RDMA READs that one of our queue pairs may serve concurrently.
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

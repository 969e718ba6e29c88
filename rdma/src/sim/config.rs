//! Configuration of a simulated network.

use core::time::Duration;

/// Configuration of a simulated network; may change while it runs. Fields in `_ppm` are
/// probabilities per million packets.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Propagation delay from sender to receiver.
    pub latency: Duration,
    /// Maximum random delay added to the latency, uniformly distributed. It does not reorder
    /// packets.
    pub jitter: Duration,
    /// Packets that are lost.
    pub loss_ppm: u32,
    /// Packets that are delivered twice.
    pub duplication_ppm: u32,
    /// Packets that are delayed by `reordering_delay`, so that later ones may overtake them.
    pub reordering_ppm: u32,
    /// Extra delay of a reordered packet.
    pub reordering_delay: Duration,
    /// Packets with one flipped bit.
    pub corruption_ppm: u32,
    /// Bytes per second that a device can send; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Receive buffer of one socket, in bytes; packets that do not fit are dropped.
    pub receive_buffer_bytes: usize,
    /// Payload bytes of the largest packet: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
}

impl Default for SimConfig {
    /// A network with 10 us latency and without faults.
    fn default() -> Self {
        Self {
            latency: Duration::from_micros(10),
            jitter: Duration::ZERO,
            loss_ppm: 0,
            duplication_ppm: 0,
            reordering_ppm: 0,
            reordering_delay: Duration::from_micros(50),
            corruption_ppm: 0,
            bandwidth: None,
            receive_buffer_bytes: 1 << 20,
            path_mtu: 1024,
        }
    }
}

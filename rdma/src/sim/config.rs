//! The behaviour of a simulated network.

use core::time::Duration;

/// Behaviour of a simulated network; may change while it runs. Probabilities are per million
/// packets.
#[derive(Clone, Copy, Debug)]
pub struct SimConfig {
    /// Time from sender to receiver.
    pub latency: Duration,
    /// Added to the latency, evenly distributed from nothing to this. Packets stay in order, unless
    /// reordering takes them out of it.
    pub jitter: Duration,
    /// Packets that are lost on the way.
    pub loss_ppm: u32,
    /// Packets that arrive twice.
    pub duplication_ppm: u32,
    /// Packets that are held back by `reordering_delay`.
    pub reordering_ppm: u32,
    /// How long a reordered packet is held back.
    pub reordering_delay: Duration,
    /// Packets with one flipped bit.
    pub corruption_ppm: u32,
    /// Bytes per second that a device can send; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Capacity of one receiving socket, in bytes; more is dropped.
    pub receive_buffer_bytes: usize,
    /// Payload bytes of the largest packet: 256, 512, 1024, 2048 or 4096.
    pub path_mtu: u32,
}

impl Default for SimConfig {
    /// A quick network without faults.
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

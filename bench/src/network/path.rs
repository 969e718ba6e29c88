//! What a path does to packets.

use std::time::Duration;

/// A path: the same for both directions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) bytes_per_second: f64,
    /// Packets wait here for the bottleneck. What does not fit is dropped.
    pub(super) queue_bytes: f64,
    /// Packets that are ECN-capable and find more than this in the queue are marked CE.
    pub(super) mark_above_bytes: Option<f64>,
    /// Time from the bottleneck to the other side, in one direction.
    pub(super) delay: Duration,
    /// Packets lost at random, of a million.
    pub(super) lost_per_million: u32,
}

impl Path {
    /// 1 Gbit/s, a queue of 150 KB, and a round trip of 0.2 ms: a switch with small buffers.
    pub(super) const SWITCH: Self = Self {
        bytes_per_second: 125e6,
        queue_bytes: 150e3,
        mark_above_bytes: None,
        delay: Duration::from_micros(100),
        lost_per_million: 0,
    };

    /// The same with a queue of 400 KB, which marks packets that wait longer than half a
    /// millisecond.
    pub(super) const MARKING_SWITCH: Self =
        Self { queue_bytes: 400e3, mark_above_bytes: Some(65e3), ..Self::SWITCH };

    /// 1 Gbit/s over a distance, with random loss and a queue for one round trip at that rate.
    pub(super) fn distant(round_trip: Duration, lost_per_million: u32) -> Self {
        let in_flight = Self::SWITCH.bytes_per_second * round_trip.as_secs_f64();
        Self {
            queue_bytes: in_flight.max(Self::SWITCH.queue_bytes),
            delay: round_trip / 2,
            lost_per_million,
            ..Self::SWITCH
        }
    }
}

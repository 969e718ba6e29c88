//! The queue of a simulated link.

use core::time::Duration;

use crate::Time;

/// A finite first-in, first-out queue that drops packets that do not fit (drop-tail). Packets are
/// not stored, since the departure time is known on entry.
pub(super) struct PacketQueue {
    bytes_per_second: u64,
    limit_bytes: u64,
    /// Time at which the queue is empty.
    idle_at: Time,
}

impl PacketQueue {
    pub(super) const fn new() -> Self {
        Self { bytes_per_second: 1, limit_bytes: 0, idle_at: Time::ZERO }
    }

    /// Sets rate and capacity. Packets in the queue keep their departure times.
    pub(super) fn set(&mut self, bytes_per_second: u64, limit_bytes: u64) {
        (self.bytes_per_second, self.limit_bytes) = (bytes_per_second.max(1), limit_bytes);
    }

    /// Bytes in the queue at `now`.
    pub(super) fn backlog(&self, now: Time) -> u64 {
        let nanos = (self.idle_at - now).as_nanos() * u128::from(self.bytes_per_second);
        u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX)
    }

    /// Adds a packet and returns its departure time; `None` if it does not fit. An empty queue
    /// accepts any packet.
    pub(super) fn enter(&mut self, now: Time, bytes: u64) -> Option<Time> {
        let backlog = self.backlog(now);
        if backlog > 0 && backlog + bytes > self.limit_bytes {
            return None;
        }
        let takes = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        let takes = Duration::from_nanos(u64::try_from(takes).unwrap_or(u64::MAX));
        self.idle_at = self.idle_at.max(now) + takes;
        Some(self.idle_at)
    }

    pub(super) const fn idle_at(&self) -> Time {
        self.idle_at
    }

    /// Delays all departures by `time`.
    pub(super) fn postpone(&mut self, time: Duration) {
        self.idle_at = self.idle_at + time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_dropped() {
        let mut queue = PacketQueue::new();
        queue.set(1_000_000, 3_000);
        let now = Time::from_nanos(5_000_000);
        let left = |milliseconds: u64| Some(Time::from_nanos(milliseconds * 1_000_000));
        assert_eq!(queue.enter(now, 1_000), left(6));
        assert_eq!(queue.enter(now, 2_000), left(8));
        assert_eq!(queue.enter(now, 1_000), None);
        assert_eq!(queue.backlog(now), 3_000);
        let later = Time::from_nanos(7_000_000);
        assert_eq!(queue.backlog(later), 1_000);
        assert_eq!(queue.enter(later, 2_000), left(10));
        let idle = Time::from_nanos(20_000_000);
        assert_eq!(queue.backlog(idle), 0);
        assert_eq!(queue.enter(idle, 9_000), left(29), "an empty queue takes any packet");
    }
}

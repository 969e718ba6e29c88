//! One direction of a bottleneck: a link with a finite queue, which others use as well.

use core::time::Duration;

use splitmix64::SplitMix64;

use super::cross_traffic::{CrossSource, CrossTraffic, CrossTrafficStats};
use super::packet_queue::PacketQueue;
use crate::Time;

/// Behaviour of one direction of a bottleneck; may change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Bytes per second that pass.
    pub bytes_per_second: u64,
    /// Bytes that may wait; packets that do not fit are dropped.
    pub queue_bytes: u64,
    /// From the end of the queue to the receiver, beyond the latency of the network.
    pub delay: Duration,
    /// A source that shares the queue.
    pub source: Option<CrossSource>,
    /// A flow like TCP's that shares the queue, by its round trip when the queue is empty.
    pub flow_round_trip: Option<Duration>,
}

/// Counts of one direction of a bottleneck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Our packets that passed.
    pub passed: u64,
    /// Their bytes, as Ethernet carries them.
    pub passed_bytes: u64,
    /// Our packets that found the queue full.
    pub dropped: u64,
    /// The most bytes that waited when one of our packets came.
    pub longest_queue: u64,
    /// The traffic of others.
    pub others: CrossTrafficStats,
}

pub(super) struct Link {
    config: LinkConfig,
    queue: PacketQueue,
    others: CrossTraffic,
    stats: LinkStats,
}

impl Link {
    pub(super) fn new(config: LinkConfig, now: Time, random: &mut SplitMix64) -> Self {
        let mut link = Self {
            config,
            queue: PacketQueue::new(),
            others: CrossTraffic::new(random.next_u64()),
            stats: LinkStats::default(),
        };
        link.others.catch_up(now, &mut link.queue);
        link.set(config, now);
        link
    }

    /// Behaves differently from now on; what waits leaves as it would have.
    pub(super) fn set(&mut self, config: LinkConfig, now: Time) {
        self.others.catch_up(now, &mut self.queue);
        self.config = config;
        self.queue.set(config.bytes_per_second, config.queue_bytes);
        self.others.set(config.source, config.flow_round_trip);
    }

    /// When a packet of ours that comes now reaches the end of the link; `None` if it is dropped.
    pub(super) fn carry(&mut self, now: Time, bytes: u64) -> Option<Time> {
        self.others.catch_up(now, &mut self.queue);
        self.stats.longest_queue = self.stats.longest_queue.max(self.queue.backlog(now));
        let Some(left) = self.queue.enter(now, bytes) else {
            self.stats.dropped += 1;
            return None;
        };
        self.stats.passed += 1;
        self.stats.passed_bytes += bytes;
        Some(left + self.config.delay)
    }

    /// The counts until now.
    pub(super) fn stats(&mut self, now: Time) -> LinkStats {
        self.others.catch_up(now, &mut self.queue);
        LinkStats { others: self.others.stats(), ..self.stats }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A megabyte per second, with room for three packets of 1,000 bytes.
    const CONFIG: LinkConfig = LinkConfig {
        bytes_per_second: 1_000_000,
        queue_bytes: 3_000,
        delay: Duration::from_millis(5),
        source: None,
        flow_round_trip: None,
    };

    fn at(milliseconds: u64) -> Time {
        Time::from_nanos(milliseconds * 1_000_000)
    }

    #[test]
    fn packets_pass_one_after_the_other() {
        let mut link = Link::new(CONFIG, at(0), &mut SplitMix64::new(1));
        let passed: Vec<_> = (0..5).map(|_| link.carry(at(10), 1_000)).collect();
        assert_eq!(passed, [Some(at(16)), Some(at(17)), Some(at(18)), None, None]);
        link.set(LinkConfig { delay: Duration::ZERO, queue_bytes: 4_000, ..CONFIG }, at(11));
        assert_eq!(link.carry(at(11), 1_000), Some(at(14)), "behind those that wait");
        let stats = link.stats(at(20));
        assert_eq!((stats.passed, stats.passed_bytes, stats.dropped), (4, 4_000, 2));
        assert_eq!(stats.longest_queue, 3_000);
    }

    #[test]
    fn others_share_the_queue() {
        let source =
            CrossSource { bytes_per_second: 2_000_000, on: at(1) - at(0), off: Duration::ZERO };
        let config = LinkConfig { source: Some(source), ..CONFIG };
        let mut link = Link::new(config, at(0), &mut SplitMix64::new(1));
        let passed = (0..10_000).filter(|&ms| link.carry(at(ms), 1_500).is_some()).count();
        let stats = link.stats(at(10_000));
        assert!((1_000..9_000).contains(&passed), "{stats:?}");
        let bytes = stats.passed_bytes + stats.others.source_bytes;
        assert!(bytes.abs_diff(10_000_000) < 10_000, "the link is busy: {stats:?}");
        assert!(stats.dropped > 0 && stats.others.dropped > 0, "{stats:?}");
    }
}

//! One direction of a bottleneck: a link with a finite queue, which cross traffic may share.

use core::time::Duration;

use roce_proto::wire::Ecn;
use splitmix64::SplitMix64;

use super::cross_traffic::{CrossSource, CrossTraffic, CrossTrafficStats};
use super::packet_queue::PacketQueue;
use crate::Time;

/// ECN marking by queue length on arrival (RED): no packets up to `from_bytes`, all above
/// `to_bytes`, and with linearly increasing probability in between. Equal values give the marking
/// of DCTCP (RFC 8257, 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marking {
    /// Queue length up to which no packet is marked: `K_min`.
    pub from_bytes: u64,
    /// Queue length above which every packet is marked: `K_max`.
    pub to_bytes: u64,
    /// Marking probability just below `to_bytes`, per million: `P_max`.
    pub most_ppm: u32,
}

impl Marking {
    fn marks(&self, backlog: u64, random: &mut SplitMix64) -> bool {
        if backlog <= self.from_bytes {
            return false;
        }
        if backlog > self.to_bytes {
            return true;
        }
        let part = u64::from(self.most_ppm) * (backlog - self.from_bytes)
            / (self.to_bytes - self.from_bytes);
        random.chance(u32::try_from(part).unwrap_or(u32::MAX))
    }
}

/// Configuration of one direction of a bottleneck; may change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate of the link in bytes per second.
    pub bytes_per_second: u64,
    /// Capacity of the queue in bytes; packets that do not fit are dropped.
    pub queue_bytes: u64,
    /// ECN marking of packets whose sender is ECN-capable; `None` for no marking.
    pub marking: Option<Marking>,
    /// Extra propagation delay beyond the latency of the network.
    pub delay: Duration,
    /// A constant-rate source that shares the queue.
    pub source: Option<CrossSource>,
    /// Round-trip time, with an empty queue, of a TCP-like flow that shares the queue; `None` for
    /// no flow.
    pub flow_round_trip: Option<Duration>,
}

/// Counters of one direction of a bottleneck.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStats {
    /// Our packets that passed the link.
    pub passed: u64,
    /// Bytes of the packets that passed, as Ethernet carries them.
    pub passed_bytes: u64,
    /// Our packets dropped because the queue was full.
    pub dropped: u64,
    /// Our packets that were marked (ECN CE).
    pub marked: u64,
    /// Maximum queue length, in bytes, when one of our packets arrived.
    pub longest_queue: u64,
    /// Counters of the cross traffic.
    pub others: CrossTrafficStats,
}

pub(super) struct Link {
    config: LinkConfig,
    queue: PacketQueue,
    others: CrossTraffic,
    random: SplitMix64,
    stats: LinkStats,
}

impl Link {
    pub(super) fn new(config: LinkConfig, now: Time, random: &mut SplitMix64) -> Self {
        let mut link = Self {
            config,
            queue: PacketQueue::new(),
            others: CrossTraffic::new(random.next_u64()),
            random: SplitMix64::new(random.next_u64()),
            stats: LinkStats::default(),
        };
        link.others.catch_up(now, &mut link.queue);
        link.set(config, now);
        link
    }

    /// Changes the configuration; queued packets leave at the times already determined.
    pub(super) fn set(&mut self, config: LinkConfig, now: Time) {
        self.others.catch_up(now, &mut self.queue);
        self.config = config;
        self.queue.set(config.bytes_per_second, config.queue_bytes);
        self.others.set(config.source, config.flow_round_trip);
    }

    /// Sends one of our packets through the link: returns its arrival time at the end and its ECN
    /// field, or `None` if it is dropped.
    pub(super) fn carry(&mut self, now: Time, bytes: u64, ecn: Ecn) -> Option<(Time, Ecn)> {
        self.others.catch_up(now, &mut self.queue);
        let backlog = self.queue.backlog(now);
        self.stats.longest_queue = self.stats.longest_queue.max(backlog);
        let Some(left) = self.queue.enter(now, bytes) else {
            self.stats.dropped += 1;
            return None;
        };
        self.stats.passed += 1;
        self.stats.passed_bytes += bytes;
        let heeds = matches!(ecn, Ecn::Ect0 | Ecn::Ect1);
        let marking = self.config.marking.filter(|_| heeds);
        let marks = marking.is_some_and(|marking| marking.marks(backlog, &mut self.random));
        self.stats.marked += u64::from(marks);
        Some((left + self.config.delay, if marks { Ecn::Ce } else { ecn }))
    }

    /// The counters up to `now`.
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
        marking: None,
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
        let passed: Vec<_> = (0..5).map(|_| link.carry(at(10), 1_000, Ecn::Ect0)).collect();
        let not_marked = |time| Some((time, Ecn::Ect0));
        let expected = [not_marked(at(16)), not_marked(at(17)), not_marked(at(18)), None, None];
        assert_eq!(passed, expected);
        link.set(LinkConfig { delay: Duration::ZERO, queue_bytes: 4_000, ..CONFIG }, at(11));
        let passed = link.carry(at(11), 1_000, Ecn::Ect0);
        assert_eq!(passed, not_marked(at(14)), "behind those that wait");
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
        let passed =
            (0..10_000).filter(|&ms| link.carry(at(ms), 1_500, Ecn::NotEct).is_some()).count();
        let stats = link.stats(at(10_000));
        assert!((1_000..9_000).contains(&passed), "{stats:?}");
        let bytes = stats.passed_bytes + stats.others.source_bytes;
        assert!(bytes.abs_diff(10_000_000) < 10_000, "the link is busy: {stats:?}");
        assert!(stats.dropped > 0 && stats.others.dropped > 0, "{stats:?}");
    }

    /// Packets that find a longer queue are marked more often; those without ECN never are.
    #[test]
    fn a_long_queue_marks() {
        let marking = Marking { from_bytes: 10_000, to_bytes: 90_000, most_ppm: 500_000 };
        let config = LinkConfig { queue_bytes: 100_000, marking: Some(marking), ..CONFIG };
        let marked = |ecn, at_bytes: u64| {
            let mut link = Link::new(config, at(0), &mut SplitMix64::new(1));
            let mut marked = 0;
            for round in 0..1_000 {
                let now = at(round * 1_000);
                while link.queue.backlog(now) < at_bytes {
                    assert_ne!(link.carry(now, 1_000, Ecn::NotEct).map(|(_, ecn)| ecn), None);
                }
                let passed = link.carry(now, 1_000, ecn).expect("there is room");
                marked += usize::from(passed.1 == Ecn::Ce);
            }
            assert_eq!(link.stats(at(0)).marked, marked as u64);
            marked
        };
        assert_eq!(marked(Ecn::Ect0, 10_000), 0);
        assert!((200..300).contains(&marked(Ecn::Ect0, 50_000)), "half of a half");
        assert_eq!(marked(Ecn::Ect1, 91_000), 1_000);
        assert_eq!(marked(Ecn::NotEct, 91_000), 0);
    }
}

//! One direction of a path: which packets arrive, and when.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use splitmix64::SplitMix64;

use super::ecn;
use super::path::Path;

/// Packets on their way, in the order in which they arrive.
pub(super) struct Bottleneck {
    path: Path,
    random: SplitMix64,
    /// When the last packet that was accepted has left the queue.
    free_at: Option<Instant>,
    under_way: VecDeque<(Instant, Vec<u8>)>,
    /// Buffers of packets that have arrived.
    spare: Vec<Vec<u8>>,
    pub(super) counts: PacketCounts,
}

/// What happened to packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PacketCounts {
    pub(super) delivered: u64,
    /// At random, before they reached the queue.
    pub(super) lost: u64,
    /// Because the queue was full.
    pub(super) dropped: u64,
    pub(super) marked: u64,
    /// CNPs of RoCE v2 among the delivered.
    pub(super) congestion_notifications: u64,
}

impl Bottleneck {
    pub(super) fn new(path: Path, seed: u64) -> Self {
        Self {
            path,
            random: SplitMix64::new(seed),
            free_at: None,
            under_way: VecDeque::new(),
            spare: Vec::new(),
            counts: PacketCounts::default(),
        }
    }

    /// A packet reaches the queue.
    pub(super) fn admit(&mut self, now: Instant, packet: &[u8]) {
        if self.random.chance(self.path.lost_per_million) {
            self.counts.lost += 1;
            return;
        }
        let free_at = self.free_at.map_or(now, |free_at| free_at.max(now));
        let waiting = (free_at - now).as_secs_f64() * self.path.bytes_per_second;
        let length = packet.len() as f64;
        if waiting + length > self.path.queue_bytes {
            self.counts.dropped += 1;
            return;
        }
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(packet);
        if self.path.mark_above_bytes.is_some_and(|bytes| waiting > bytes) && ecn::mark(&mut kept) {
            self.counts.marked += 1;
        }
        let free_at = free_at + Duration::from_secs_f64(length / self.path.bytes_per_second);
        self.free_at = Some(free_at);
        self.under_way.push_back((free_at + self.path.delay, kept));
    }

    /// When the next packet arrives.
    pub(super) fn next(&self) -> Option<Instant> {
        self.under_way.front().map(|&(at, _)| at)
    }

    /// Hands over a packet that has arrived by now.
    pub(super) fn deliver(&mut self, now: Instant, to: impl FnOnce(&[u8])) -> bool {
        let Some((_, packet)) = self.under_way.pop_front_if(|(at, _)| *at <= now) else {
            return false;
        };
        to(&packet);
        self.counts.delivered += 1;
        self.counts.congestion_notifications += u64::from(is_congestion_notification(&packet));
        self.spare.push(packet);
        true
    }
}

/// Whether it is a CNP: UDP to port 4791, opcode 81h (IBTA volume 1, annex A17).
fn is_congestion_notification(packet: &[u8]) -> bool {
    const UDP: u8 = 17;
    packet.len() > 28
        && packet[0] == 0x45
        && packet[9] == UDP
        && packet[22..24] == 4791_u16.to_be_bytes()
        && packet[28] == 0x81
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::now;

    const PACKET: [u8; 1000] = [0; 1000];

    fn slow() -> Path {
        // A packet each millisecond, and room for two.
        Path {
            bytes_per_second: 1e6,
            queue_bytes: 2000.0,
            mark_above_bytes: None,
            delay: Duration::from_millis(5),
            lost_per_million: 0,
        }
    }

    #[test]
    fn packets_wait_for_the_bottleneck() {
        let (start, mut link) = (now(), Bottleneck::new(slow(), 1));
        link.admit(start, &PACKET);
        link.admit(start, &PACKET);
        assert_eq!(link.next(), Some(start + Duration::from_millis(6)));
        assert!(!link.deliver(start + Duration::from_millis(5), |_| ()));
        assert!(
            link.deliver(start + Duration::from_millis(6), |packet| assert_eq!(packet, PACKET))
        );
        assert_eq!(link.next(), Some(start + Duration::from_millis(7)));
    }

    #[test]
    fn a_full_queue_drops_what_comes() {
        let (start, mut link) = (now(), Bottleneck::new(slow(), 1));
        for _ in 0..5 {
            link.admit(start, &PACKET);
        }
        assert_eq!(link.counts, PacketCounts { dropped: 3, ..PacketCounts::default() });
        // One has left by then.
        link.admit(start + Duration::from_millis(1), &PACKET);
        assert_eq!(link.counts.dropped, 3);
    }

    #[test]
    fn packets_are_marked_above_the_threshold() {
        let path = Path { mark_above_bytes: Some(500.0), ..slow() };
        let (start, mut link) = (now(), Bottleneck::new(path, 1));
        let mut capable = PACKET;
        (capable[0], capable[1]) = (0x45, 0b10);
        link.admit(start, &capable);
        link.admit(start, &capable);
        assert_eq!(link.counts.marked, 1);
    }

    #[test]
    fn the_share_that_is_lost() {
        let path = Path { lost_per_million: 100_000, queue_bytes: 1e12, ..slow() };
        let (start, mut link) = (now(), Bottleneck::new(path, 1));
        for _ in 0..10_000 {
            link.admit(start, &[0; 20]);
        }
        assert!((900..1100).contains(&link.counts.lost), "{:?}", link.counts);
    }
}

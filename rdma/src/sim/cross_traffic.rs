//! Simulated traffic of other hosts (cross traffic) that shares the queue of a link.

use core::time::Duration;
use std::collections::VecDeque;

use splitmix64::SplitMix64;

use super::packet_queue::PacketQueue;
use crate::Time;

/// Bytes of a cross-traffic packet, including the Ethernet header.
const PACKET: u64 = 1514;

/// Minimum congestion window after a reduction, in bytes.
const SMALLEST_WINDOW: u64 = 2 * PACKET;

/// RFC 6928: initial congestion window of a TCP flow, in bytes.
const INITIAL_WINDOW: u64 = 10 * PACKET;

/// Maximum time that is simulated in one step; the rest is skipped, since a simulation may advance
/// by hours in one call.
const LONGEST_CATCH_UP: Duration = Duration::from_millis(100);

/// A source that sends at a constant rate and does not react to loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossSource {
    /// Bytes per second while it sends.
    pub bytes_per_second: u64,
    /// Mean duration of a sending period; each is uniformly distributed from zero to twice this.
    pub on: Duration,
    /// Mean duration of a pause, distributed likewise; zero for a source that never pauses.
    pub off: Duration,
}

/// Counters of cross traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossTrafficStats {
    /// Bytes of the [`CrossSource`] that entered the queue.
    pub source_bytes: u64,
    /// Bytes of the TCP-like flow that entered the queue.
    pub flow_bytes: u64,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
}

/// The cross traffic of a link. Its packets enter the queue in time order with ours.
pub(super) struct CrossTraffic {
    random: SplitMix64,
    now: Time,
    source: Option<SourceState>,
    flow: Option<RenoFlow>,
    stats: CrossTrafficStats,
}

impl CrossTraffic {
    pub(super) const fn new(seed: u64) -> Self {
        Self {
            random: SplitMix64::new(seed),
            now: Time::ZERO,
            source: None,
            flow: None,
            stats: CrossTrafficStats { source_bytes: 0, flow_bytes: 0, dropped: 0 },
        }
    }

    pub(super) const fn stats(&self) -> CrossTrafficStats {
        self.stats
    }

    /// Sets the sources from now on. A TCP-like flow that exists keeps its window.
    pub(super) fn set(&mut self, source: Option<CrossSource>, flow_round_trip: Option<Duration>) {
        self.source = source.filter(|source| source.bytes_per_second > 0).map(|source| {
            let ends = self.now + twice_at_most(&mut self.random, source.on);
            SourceState { config: source, next: self.now, ends }
        });
        self.flow = flow_round_trip.map(|round_trip| {
            let flow = self.flow.take().unwrap_or_else(RenoFlow::new);
            RenoFlow { round_trip, ..flow }
        });
    }

    /// Simulates the cross traffic until `now`.
    pub(super) fn catch_up(&mut self, now: Time, queue: &mut PacketQueue) {
        let skipped = (now - self.now).saturating_sub(LONGEST_CATCH_UP);
        if self.source.is_some() || self.flow.is_some() {
            self.skip(skipped, queue);
        }
        loop {
            let source = self.source.as_ref().map(|source| source.next);
            let flow = self.flow.as_ref().map(|flow| flow.due(self.now));
            let Some(due) = source.into_iter().chain(flow).min().filter(|&due| due <= now) else {
                break;
            };
            self.now = self.now.max(due);
            match (&mut self.source, &mut self.flow) {
                (Some(source), _) if source.next == due => {
                    source.send(due, queue, &mut self.random, &mut self.stats);
                }
                (_, Some(flow)) => flow.answered(self.now, queue, &mut self.stats),
                (_, None) => break,
            }
        }
        self.now = self.now.max(now);
    }

    fn skip(&mut self, time: Duration, queue: &mut PacketQueue) {
        if time.is_zero() {
            return;
        }
        self.now = self.now + time;
        queue.postpone(time);
        if let Some(source) = &mut self.source {
            (source.next, source.ends) = (source.next + time, source.ends + time);
        }
        if let Some(flow) = &mut self.flow {
            flow.reduced = flow.reduced + time;
            for answer in &mut flow.answers {
                (answer.at, answer.left) = (answer.at + time, answer.left + time);
            }
        }
    }
}

struct SourceState {
    config: CrossSource,
    /// Departure time of its next packet.
    next: Time,
    /// End of the present sending period.
    ends: Time,
}

impl SourceState {
    fn send(
        &mut self,
        now: Time,
        queue: &mut PacketQueue,
        random: &mut SplitMix64,
        stats: &mut CrossTrafficStats,
    ) {
        match queue.enter(now, PACKET) {
            Some(_) => stats.source_bytes += PACKET,
            None => stats.dropped += 1,
        }
        let nanos = PACKET * 1_000_000_000 / self.config.bytes_per_second;
        self.next = now + Duration::from_nanos(nanos.max(1));
        if self.next >= self.ends && !self.config.off.is_zero() {
            self.next = self.next + twice_at_most(random, self.config.off);
            self.ends = self.next + twice_at_most(random, self.config.on);
        }
    }
}

/// A flow that always has data to send, with the congestion window of RFC 5681: slow start, one
/// packet more per round trip, half the window after a loss. It detects a loss when the
/// acknowledgement would have come, as with selective acknowledgements, and has no retransmission
/// timeout.
struct RenoFlow {
    round_trip: Duration,
    window: u64,
    threshold: u64,
    in_flight: u64,
    /// Acknowledgements and losses to come, in time order.
    answers: VecDeque<FlowAnswer>,
    /// Time of the last reduction of the window.
    reduced: Time,
}

/// The acknowledgement or the loss of a packet, as the flow learns of it.
struct FlowAnswer {
    at: Time,
    /// Departure time of the packet.
    left: Time,
    lost: bool,
}

impl RenoFlow {
    const fn new() -> Self {
        Self {
            round_trip: Duration::ZERO,
            window: INITIAL_WINDOW,
            threshold: u64::MAX,
            in_flight: 0,
            answers: VecDeque::new(),
            reduced: Time::ZERO,
        }
    }

    /// Time of the flow's next action: that of the next acknowledgement, or `now` if nothing is in
    /// flight.
    fn due(&self, now: Time) -> Time {
        self.answers.front().map_or(now, |answer| answer.at)
    }

    /// Processes the acknowledgements due by `now`, and sends what the window allows.
    fn answered(&mut self, now: Time, queue: &mut PacketQueue, stats: &mut CrossTrafficStats) {
        while let Some(answer) = self.answers.pop_front_if(|answer| answer.at <= now) {
            self.in_flight -= PACKET;
            match answer.lost {
                false if self.window < self.threshold => self.window += PACKET,
                false => self.window += PACKET * PACKET / self.window,
                true if answer.left >= self.reduced => {
                    self.window = (self.window / 2).max(SMALLEST_WINDOW);
                    self.threshold = self.window;
                    self.reduced = now;
                }
                true => {}
            }
        }
        while self.in_flight + PACKET <= self.window {
            self.send(now, queue, stats);
        }
    }

    fn send(&mut self, now: Time, queue: &mut PacketQueue, stats: &mut CrossTrafficStats) {
        let lost = match queue.enter(now, PACKET) {
            Some(_) => {
                stats.flow_bytes += PACKET;
                false
            }
            None => {
                stats.dropped += 1;
                true
            }
        };
        self.in_flight += PACKET;
        // A loss is detected by the acknowledgement of the packet that leaves the queue next.
        let at = queue.idle_at().max(now) + self.round_trip;
        let at = self.answers.back().map_or(at, |last| last.at.max(at));
        self.answers.push_back(FlowAnswer { at, left: now, lost });
    }
}

/// A uniformly distributed time from 1 ns to twice `mean`.
fn twice_at_most(random: &mut SplitMix64, mean: Duration) -> Duration {
    let nanos = u64::try_from(mean.as_nanos()).unwrap_or(u64::MAX / 4);
    Duration::from_nanos(random.below(nanos.saturating_mul(2)).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    /// 1 Gbit/s, in bytes per second.
    const RATE: u64 = 125_000_000;

    /// Traffic of others in a second, seen each millisecond.
    fn a_second(
        queue_bytes: u64,
        source: Option<CrossSource>,
        flow: Option<Duration>,
    ) -> CrossTrafficStats {
        let mut queue = PacketQueue::new();
        queue.set(RATE, queue_bytes);
        let mut others = CrossTraffic::new(7);
        others.set(source, flow);
        for millisecond in 1..=1_000 {
            others.catch_up(Time::ZERO + MILLISECOND * millisecond, &mut queue);
        }
        others.stats()
    }

    #[test]
    fn a_source_sends_at_its_rate_while_it_sends() {
        let always = |bytes_per_second| CrossSource {
            bytes_per_second,
            on: MILLISECOND,
            off: Duration::ZERO,
        };
        let stats = a_second(100_000, Some(always(50_000_000)), None);
        assert!(stats.source_bytes.abs_diff(50_000_000) < 10_000, "{stats:?}");
        assert_eq!(stats.dropped, 0);
        let stats = a_second(100_000, Some(always(250_000_000)), None);
        assert!(stats.source_bytes.abs_diff(RATE) < 200_000, "{stats:?}");
        assert!(stats.dropped.abs_diff(RATE / PACKET) < 1_000, "{stats:?}");
        let pauses = CrossSource { off: 3 * MILLISECOND, ..always(100_000_000) };
        let stats = a_second(100_000, Some(pauses), None);
        assert!((18_000_000..32_000_000).contains(&stats.source_bytes), "{stats:?}");
    }

    /// A flow keeps the link busy with a queue of the path's bandwidth-delay product; with next to
    /// none it has three quarters.
    #[test]
    fn a_flow_fills_the_link_and_heeds_its_losses() {
        let round_trip = MILLISECOND;
        for (queue_bytes, least, most) in [(125_000, 0.97, 1.0), (6_000, 0.70, 0.9)] {
            let stats = a_second(queue_bytes, None, Some(round_trip));
            let share = stats.flow_bytes as f64 / RATE as f64;
            assert!((least..=most).contains(&share), "{queue_bytes}: {share:.2} {stats:?}");
            let sent = stats.flow_bytes / PACKET + stats.dropped;
            assert!((1..sent / 50).contains(&stats.dropped), "{queue_bytes}: {stats:?}");
        }
    }

    /// An hour in which nobody looks costs no more than a tenth of a second.
    #[test]
    fn long_silences_are_skipped() {
        let mut queue = PacketQueue::new();
        queue.set(RATE, 100_000);
        let mut others = CrossTraffic::new(7);
        others.set(None, Some(MILLISECOND));
        others.catch_up(Time::ZERO + MILLISECOND, &mut queue);
        others.catch_up(Time::ZERO + Duration::from_secs(3600), &mut queue);
        assert!(others.stats().flow_bytes <= RATE / 8, "{:?}", others.stats());
        others.catch_up(Time::ZERO + Duration::from_millis(3_600_100), &mut queue);
        assert!(others.stats().flow_bytes > RATE / 8, "{:?}", others.stats());
    }
}

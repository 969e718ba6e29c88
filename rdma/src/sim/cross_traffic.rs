//! Traffic of others that shares the queue of a simulated link.

use core::time::Duration;
use std::collections::VecDeque;

use splitmix64::SplitMix64;

use super::packet_queue::PacketQueue;
use crate::Time;

/// Bytes of a packet of others, as Ethernet carries it.
const PACKET: u64 = 1514;

/// A reduced window never falls below this.
const SMALLEST_WINDOW: u64 = 2 * PACKET;

/// RFC 6928: the window of a TCP flow that starts.
const INITIAL_WINDOW: u64 = 10 * PACKET;

/// Others do nothing for longer than this while nobody looks: a world may let hours pass in one
/// step.
const LONGEST_CATCH_UP: Duration = Duration::from_millis(100);

/// A source that sends at a constant rate and heeds no loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CrossSource {
    /// Bytes per second while it sends.
    pub bytes_per_second: u64,
    /// How long it sends, on average: each time is evenly distributed from nothing to twice this.
    pub on: Duration,
    /// How long it pauses in between, likewise; zero for a source that never pauses.
    pub off: Duration,
}

/// Packets of others by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CrossTrafficStats {
    /// Bytes of the [`CrossSource`] that passed.
    pub source_bytes: u64,
    /// Bytes of the flow with a window that passed.
    pub flow_bytes: u64,
    /// Packets that found the queue full.
    pub dropped: u64,
}

/// The others on a link. Their packets enter its queue in the order of time with ours.
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

    /// Who sends from now on. A flow with a window keeps it.
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

    /// Sends all that others send until now.
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
    /// When its next packet leaves.
    next: Time,
    /// When it begins to pause.
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

/// A flow that always has something to send and follows RFC 5681 as far as the window goes: slow
/// start, a packet more in each round trip, half of the window after a loss. It learns of a loss
/// when the acknowledgement would have come, as with selective acknowledgements, and never has to
/// wait for a timer.
struct RenoFlow {
    round_trip: Duration,
    window: u64,
    threshold: u64,
    in_flight: u64,
    /// Answers by the time at which they come.
    answers: VecDeque<FlowAnswer>,
    /// When the window was last reduced.
    reduced: Time,
}

/// Notice to the flow about a packet.
struct FlowAnswer {
    at: Time,
    /// When the packet left.
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

    /// Time at which the flow does something next: `now` if none of its packets is on its way.
    fn due(&self, now: Time) -> Time {
        self.answers.front().map_or(now, |answer| answer.at)
    }

    /// Takes what came by now, and sends what the window allows.
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
        // The packet that leaves the queue behind it is the one that tells of a loss.
        let at = queue.idle_at().max(now) + self.round_trip;
        let at = self.answers.back().map_or(at, |last| last.at.max(at));
        self.answers.push_back(FlowAnswer { at, left: now, lost });
    }
}

/// A time up to twice as long as `mean`, and not zero.
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

//! Bottleneck of some chaos runs between hosts and targets: it changes while they run.

use std::time::Duration;

use rdma::sim::{CrossSource, LinkConfig, Marking};

use super::Random;

/// Percentage of seeds that have a bottleneck.
const SEEDS_PERCENT: u64 = 30;
/// The most changes of a chaos run. The first one adds the bottleneck.
const CHANGES: u64 = 5;

/// When a bottleneck changes, and to what. Its random numbers are its own: whether a seed has a
/// bottleneck changes nothing else of it.
pub(super) struct BottleneckChange {
    random: Random,
    /// Changes to come, each after this many requests, the next one last.
    due: Vec<u32>,
}

impl BottleneckChange {
    /// Draws the changes of a seed whose chaos run has this many requests.
    pub(super) fn new(seed: u64, requests: u32) -> Self {
        let mut random = Random::new(!seed);
        let mut due = Vec::new();
        if random.percent(SEEDS_PERCENT) {
            let changes = random.within(1..CHANGES + 1);
            due.extend((1..changes).map(|_| random.within(0..requests.into()) as u32));
            due.push(0);
        }
        due.sort_unstable_by(|a, b| b.cmp(a));
        Self { random, due }
    }

    /// Links to and from the targets, if a change is due after `finished` requests.
    pub(super) fn next(&mut self, finished: u32) -> Option<[LinkConfig; 2]> {
        self.due.pop_if(|due| *due <= finished)?;
        Some([self.link(), self.link()])
    }

    /// Draws a link between a home line and a slow switch, with up to 20 ms of round trip.
    fn link(&mut self) -> LinkConfig {
        let random = &mut self.random;
        let bytes_per_second = random.pick(&[1_000_000, 5_000_000, 20_000_000, 125_000_000]);
        // A full queue takes 50 ms at the most.
        let queue_bytes = random.pick(&[20_000, 150_000, 1_000_000]).min(bytes_per_second / 20);
        let longest_delay_us = random.pick(&[1, 100, 1_000, 10_000]);
        let delay = Duration::from_micros(random.within(0..longest_delay_us));
        let step = Marking { from_bytes: queue_bytes / 5, to_bytes: queue_bytes / 5, most_ppm: 0 };
        let ramp = Marking { to_bytes: queue_bytes / 2, most_ppm: 100_000, ..step };
        let marking = random.pick(&[None, Some(step), Some(ramp)]);
        // Others have no more than 20 MB/s: it takes time to follow each of their packets.
        let others_rate = bytes_per_second.min(20_000_000);
        let source = CrossSource {
            bytes_per_second: others_rate * random.within(1..10) / 10,
            on: Duration::from_micros(random.within(1..20_000)),
            off: Duration::from_micros(random.within(0..50_000)),
        };
        let source = random.percent(30).then_some(source);
        let has_flow = bytes_per_second <= others_rate && random.percent(30);
        let flow_round_trip = has_flow.then(|| Duration::from_micros(random.within(20..20_000)));
        LinkConfig { bytes_per_second, queue_bytes, marking, delay, source, flow_round_trip }
    }
}

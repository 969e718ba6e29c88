//! Performance of hosts over a link that loses packets, or that others use as well: goodput,
//! packets that are sent again, and the shares of flows.

use std::time::Duration;

use feedrail_initiator::ControllerOptions;
use rdma::sim::{LinkConfig, LinkStats, SimConfig};

use super::{BulkDirection, BulkFlow, Disk, TargetOptions, World};

/// 1 Gbit/s, in bytes per second.
pub const GIGABIT: u64 = 125_000_000;
/// A queue that never overflows.
pub const ENDLESS_QUEUE: u64 = 1 << 40;
/// 100 packets of Ethernet.
pub const SHORT_QUEUE: u64 = 150_000;
/// Receive buffer that `soft` asks Linux for, in bytes.
const RECEIVE_BUFFER: usize = 8 << 20;
/// Bytes of each range.
const LENGTH: usize = 128 << 10;
/// Ranges in flight of each host.
const DEPTH: usize = 32;
/// Largest part of packets that are sent again, in a trial that may fail.
const MOST_REPEATS: f64 = 0.3;

/// Hosts that keep a target busy, and the path between them.
#[derive(Clone, Copy, Debug)]
pub struct LinkTrial {
    /// Whether the hosts read or write.
    pub direction: BulkDirection,
    /// How many they are. They know nothing of each other.
    pub hosts: usize,
    /// The link in the direction of the payload. That of the other direction is as fast, and drops
    /// nothing.
    pub link: LinkConfig,
    /// Time from a host to the target and back, while no packet waits.
    pub round_trip: Duration,
    /// Packets that are lost at random, in a million.
    pub loss_ppm: u32,
    /// Payload bytes of the largest packet.
    pub path_mtu: u32,
    /// The time before the one that counts.
    pub warm_up: Duration,
    /// The time that counts.
    pub time: Duration,
}

/// Result of a trial.
#[derive(Clone, Copy, Debug)]
pub struct LinkFigures {
    /// Bytes per second of all hosts.
    pub goodput: f64,
    /// Jain's index of the hosts: 1 if all get the same.
    pub fairness: f64,
    /// Packets sent again, by packets sent.
    pub repeats: f64,
    /// Packets that the link dropped, by packets that came there.
    pub drops: f64,
    /// Packets that the link marked, likewise.
    pub marks: f64,
    /// Bytes per second of the flow like TCP's.
    pub other: f64,
}

/// A link without cross traffic, delay and marks.
pub fn plain_link(bytes_per_second: u64, queue_bytes: u64) -> LinkConfig {
    LinkConfig {
        bytes_per_second,
        queue_bytes,
        marking: None,
        delay: Duration::ZERO,
        source: None,
        flow_round_trip: None,
    }
}

/// A trial of what chaos runs do not find: a window that does not heed losses.
///
/// # Panics
/// When hosts fill a short queue with packets that they have sent already.
pub fn expect_few_repeats(seed: u64) {
    for direction in [BulkDirection::Read, BulkDirection::Write] {
        let link = plain_link(GIGABIT, SHORT_QUEUE);
        let trial = LinkTrial { hosts: 4, ..LinkTrial::new(direction, link, 1_000) };
        let LinkFigures { repeats, goodput, .. } = trial.run(seed);
        assert!(
            repeats <= MOST_REPEATS,
            "{direction:?}: {:.0} % of the packets are sent again, {:.0} MB/s",
            repeats * 100.0,
            goodput / 1e6
        );
    }
}

impl LinkTrial {
    /// One host, with packets for Ethernet's usual MTU, for long enough that windows settle.
    pub fn new(direction: BulkDirection, link: LinkConfig, round_trip_us: u64) -> Self {
        let round_trip = Duration::from_micros(round_trip_us);
        Self {
            direction,
            hosts: 1,
            link,
            round_trip,
            loss_ppm: 0,
            path_mtu: 1024,
            warm_up: Duration::from_millis(200) + round_trip * 30,
            time: Duration::from_millis(400) + round_trip * 60,
        }
    }

    /// The median of each figure, of runs with this many seeds.
    pub fn measure(&self, seeds: u64) -> LinkFigures {
        let runs: Vec<LinkFigures> = (0..seeds).map(|seed| self.run(seed)).collect();
        LinkFigures {
            goodput: median(&runs, |run| run.goodput),
            fairness: median(&runs, |run| run.fairness),
            repeats: median(&runs, |run| run.repeats),
            drops: median(&runs, |run| run.drops),
            marks: median(&runs, |run| run.marks),
            other: median(&runs, |run| run.other),
        }
    }

    /// Runs the trial of a seed.
    pub fn run(&self, seed: u64) -> LinkFigures {
        let mut world = World::new(seed, self.network());
        let mut flows = self.start(&mut world);
        world.run_flows(&mut flows, self.warm_up);
        let bytes: Vec<u64> = flows.iter().map(BulkFlow::bytes).collect();
        let (start, stats, link) = (world.now(), world.network_stats(), self.stats(&world));
        world.run_flows(&mut flows, self.time);
        let seconds = (world.now() - start).as_secs_f64();
        let (stats_now, link_now) = (world.network_stats(), self.stats(&world));
        let rates: Vec<f64> = flows
            .iter()
            .zip(bytes)
            .map(|(flow, before)| (flow.bytes() - before) as f64 / seconds)
            .collect();
        let sent = stats_now.packets_sent - stats.packets_sent;
        let again = stats_now.packets_retransmitted - stats.packets_retransmitted;
        let dropped = link_now.dropped - link.dropped;
        let came = link_now.passed - link.passed + dropped;
        let other = link_now.others.flow_bytes - link.others.flow_bytes;
        LinkFigures {
            goodput: rates.iter().sum(),
            fairness: jains_index(&rates),
            repeats: again as f64 / sent as f64,
            drops: dropped as f64 / came as f64,
            marks: (link_now.marked - link.marked) as f64 / came as f64,
            other: other as f64 / seconds,
        }
    }

    fn network(&self) -> SimConfig {
        SimConfig {
            latency: self.round_trip / 2,
            jitter: Duration::from_micros(2),
            loss_ppm: self.loss_ppm,
            receive_buffer_bytes: RECEIVE_BUFFER,
            path_mtu: self.path_mtu,
            ..SimConfig::default()
        }
    }

    /// Connects the hosts and puts the bottleneck in their way.
    fn start(&self, world: &mut World) -> Vec<BulkFlow> {
        let mut options = TargetOptions::default();
        options.limits.max_transfer_bytes = LENGTH as u32;
        options.limits.pool_bytes = 96 << 20;
        let target = world.add_target(vec![Disk::memory("disk", 16 << 20)], options);
        let flows = (0..self.hosts).map(|_| {
            let host = world.add_host(ControllerOptions::new());
            let namespace = world.open(host, target, 1);
            BulkFlow::new(world.host(host), namespace, self.direction, (LENGTH, DEPTH))
        });
        let flows = flows.collect();
        let back = plain_link(self.link.bytes_per_second, ENDLESS_QUEUE);
        match self.direction {
            BulkDirection::Read => world.set_bottleneck(back, self.link),
            BulkDirection::Write => world.set_bottleneck(self.link, back),
        }
        flows
    }

    fn stats(&self, world: &World) -> LinkStats {
        let stats = world.network().bottleneck_stats().expect("it was set");
        match self.direction {
            BulkDirection::Read => stats.outward,
            BulkDirection::Write => stats.inward,
        }
    }
}

fn jains_index(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (squares * rates.len() as f64)
}

fn median(runs: &[LinkFigures], figure: impl Fn(&LinkFigures) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

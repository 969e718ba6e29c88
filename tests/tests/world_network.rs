//! What a network costs that loses packets, or that others use as well, in virtual time: goodput,
//! packets that are sent again, and the shares of flows.
//!
//! Each figure is the median of [`SEEDS`] runs, and is printed. The bounds are what must be kept.

use std::time::Duration;

use feedrail_initiator::ControllerOptions;
use feedrail_tests::world::BulkDirection::{Read, Write};
use feedrail_tests::world::{BulkDirection, BulkFlow, Disk, TargetOptions, World};
use rdma::sim::{LinkConfig, LinkStats, SimConfig};

const SEEDS: u64 = 3;
/// 1 Gbit/s and 10 Gbit/s, in bytes per second.
const GIGABIT: u64 = 125_000_000;
const TEN_GIGABIT: u64 = 10 * GIGABIT;
/// A queue that never overflows.
const ENDLESS: u64 = 1 << 40;
/// 100 packets of Ethernet.
const SHORT_QUEUE: u64 = 150_000;
/// What `soft` asks Linux for, as Linux accounts it.
const RECEIVE_BUFFER: usize = 8 << 20;

/// A path between hosts and a target, and what they do.
#[derive(Clone, Copy, Debug)]
struct Case {
    direction: BulkDirection,
    hosts: usize,
    /// Of the direction of the payload.
    link: LinkConfig,
    round_trip: Duration,
    loss_ppm: u32,
    path_mtu: u32,
    /// Before the time that counts.
    warm_up: Duration,
    time: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Bytes per second of all hosts.
    goodput: f64,
    /// Jain's index of the hosts: 1 if all get the same.
    fairness: f64,
    /// Packets sent again, by packets sent.
    repeats: f64,
    /// Packets that the bottleneck dropped, by packets that came there.
    drops: f64,
    /// Bytes per second of the flow like TCP's.
    other: f64,
}

fn link(bytes_per_second: u64, queue_bytes: u64) -> LinkConfig {
    LinkConfig {
        bytes_per_second,
        queue_bytes,
        delay: Duration::ZERO,
        source: None,
        flow_round_trip: None,
    }
}

impl Case {
    fn new(direction: BulkDirection, link: LinkConfig, round_trip_us: u64) -> Self {
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

    /// The median of each figure.
    fn measure(&self) -> Measured {
        let runs: Vec<Measured> = (0..SEEDS).map(|seed| self.run(seed)).collect();
        Measured {
            goodput: median(&runs, |run| run.goodput),
            fairness: median(&runs, |run| run.fairness),
            repeats: median(&runs, |run| run.repeats),
            drops: median(&runs, |run| run.drops),
            other: median(&runs, |run| run.other),
        }
    }

    fn run(&self, seed: u64) -> Measured {
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
        Measured {
            goodput: rates.iter().sum(),
            fairness: jains_index(&rates),
            repeats: again as f64 / sent as f64,
            drops: dropped as f64 / came as f64,
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

    /// Connects the hosts, with 32 ranges of 128 KiB each, and puts the bottleneck in their way.
    fn start(&self, world: &mut World) -> Vec<BulkFlow> {
        let mut options = TargetOptions::default();
        options.limits.max_transfer_bytes = 128 << 10;
        options.limits.pool_bytes = 96 << 20;
        let target = world.add_target(vec![Disk::memory("disk", 16 << 20)], options);
        let flows = (0..self.hosts).map(|_| {
            let host = world.add_host(ControllerOptions::new());
            let namespace = world.open(host, target, 1);
            BulkFlow::new(world.host(host), namespace, self.direction, (128 << 10, 32))
        });
        let flows = flows.collect();
        let back = link(self.link.bytes_per_second, ENDLESS);
        match self.direction {
            Read => world.set_bottleneck(back, self.link),
            Write => world.set_bottleneck(self.link, back),
        }
        flows
    }

    fn stats(&self, world: &World) -> LinkStats {
        let stats = world.network().bottleneck_stats().expect("it was set");
        match self.direction {
            Read => stats.outward,
            Write => stats.inward,
        }
    }
}

fn jains_index(rates: &[f64]) -> f64 {
    let (sum, squares) =
        rates.iter().fold((0.0, 0.0), |(sum, squares), rate| (sum + rate, squares + rate * rate));
    sum * sum / (squares * rates.len() as f64)
}

fn median(runs: &[Measured], figure: impl Fn(&Measured) -> f64) -> f64 {
    let mut figures: Vec<f64> = runs.iter().map(figure).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Goodput with 0.01, 0.1 and 1 % of the packets lost, by that without loss; and that without loss,
/// by the rate of the link.
fn kept(direction: BulkDirection, round_trip_us: u64) -> (f64, [f64; 3]) {
    let rate = if round_trip_us < 1_000 { TEN_GIGABIT } else { GIGABIT };
    let short = Duration::from_millis(100) + Duration::from_micros(round_trip_us) * 60;
    let case = Case::new(direction, link(rate, ENDLESS), round_trip_us);
    let case = Case { path_mtu: 4096, warm_up: short, time: short, ..case };
    let lossless = case.measure().goodput;
    let mut line = format!("{direction:?}, RTT {round_trip_us:5} us: {:6.1} MB/s", lossless / 1e6);
    let kept = [100, 1_000, 10_000].map(|loss_ppm| {
        let Measured { goodput, repeats, .. } = Case { loss_ppm, ..case }.measure();
        let share = goodput / lossless;
        line += &format!(" | {loss_ppm:5} ppm: {share:.2}, {:.1} % again", repeats * 100.0);
        share
    });
    println!("{line}");
    (lossless / rate as f64, kept)
}

/// A row for each round trip: the part of the link that is used without loss, and what of that is
/// kept with 0.01, 0.1 and 1 % of the packets lost.
fn goodput_is_kept(direction: BulkDirection, rows: [(u64, f64, [f64; 3]); 4]) {
    for (round_trip_us, least_used, least) in rows {
        let (used, kept) = kept(direction, round_trip_us);
        assert!(used >= least_used, "{direction:?}, {round_trip_us} us: {used:.2} of the link");
        for (kept, least) in kept.into_iter().zip(least) {
            assert!(kept >= least, "{direction:?}, {round_trip_us} us: {kept:.2} is kept");
        }
    }
}

#[test]
fn reads_keep_their_goodput_when_packets_are_lost() {
    let rows = [
        (20, 0.95, [0.9, 0.8, 0.3]),
        (200, 0.95, [0.85, 0.35, 0.08]),
        (2_000, 0.93, [0.85, 0.35, 0.08]),
        (20_000, 0.9, [0.6, 0.02, 0.01]),
    ];
    goodput_is_kept(Read, rows);
}

#[test]
fn writes_keep_their_goodput_when_packets_are_lost() {
    let rows = [
        (20, 0.95, [0.9, 0.8, 0.25]),
        (200, 0.95, [0.85, 0.35, 0.04]),
        (2_000, 0.93, [0.85, 0.35, 0.06]),
        (20_000, 0.6, [0.3, 0.03, 0.01]),
    ];
    goodput_is_kept(Write, rows);
}

/// Hosts that know nothing of each other, through a short queue that says nothing of its losses.
fn share(direction: BulkDirection, hosts: usize, round_trip_us: u64) -> Measured {
    let link = link(GIGABIT, SHORT_QUEUE);
    let measured = Case { hosts, ..Case::new(direction, link, round_trip_us) }.measure();
    println!(
        "{direction:?}, {hosts:2} hosts, RTT {round_trip_us:5} us: {:5.1} MB/s, Jain's index {:.2}, \
         {:4.1} % again, {:4.1} % dropped",
        measured.goodput / 1e6,
        measured.fairness,
        measured.repeats * 100.0,
        measured.drops * 100.0
    );
    measured
}

/// With a row for each number of hosts: the least goodput in MB/s, and the most packets that are
/// sent again.
fn hosts_share_fairly(direction: BulkDirection, rows: [(usize, f64, f64); 5]) {
    for (hosts, least, most_repeats) in rows {
        let Measured { goodput, fairness, repeats, .. } = share(direction, hosts, 1_000);
        assert!(goodput >= least * 1e6, "{direction:?}, {hosts} hosts: {goodput} bytes/s");
        assert!(fairness >= 0.85, "{direction:?}, {hosts} hosts: Jain's index {fairness:.2}");
        assert!(repeats <= most_repeats, "{direction:?}, {hosts} hosts: {repeats:.3} again");
    }
}

#[test]
fn reads_share_a_short_queue() {
    let rows =
        [(1, 95.0, 0.08), (2, 95.0, 0.10), (4, 90.0, 0.15), (8, 85.0, 0.22), (16, 75.0, 0.35)];
    hosts_share_fairly(Read, rows);
}

#[test]
fn writes_share_a_short_queue() {
    let rows =
        [(1, 90.0, 0.02), (2, 90.0, 0.02), (4, 95.0, 0.04), (8, 95.0, 0.08), (16, 60.0, 0.2)];
    hosts_share_fairly(Write, rows);
}

/// The part of the goodput that a host gets of itself and a flow like TCP's.
fn beside_a_flow(direction: BulkDirection, round_trip_us: u64) -> f64 {
    let mut case = Case::new(direction, link(GIGABIT, SHORT_QUEUE), round_trip_us);
    case.link.flow_round_trip = Some(case.round_trip);
    case.time = Duration::from_secs(2);
    let Measured { goodput, other, repeats, .. } = case.measure();
    let share = goodput / (goodput + other);
    println!(
        "{direction:?}, RTT {round_trip_us:5} us, beside a flow like TCP's: {:5.1} and {:5.1} MB/s, \
         {:.0} %, {:.1} % again",
        goodput / 1e6,
        other / 1e6,
        share * 100.0,
        repeats * 100.0
    );
    share
}

/// Both get their part: neither is starved.
#[test]
fn a_flow_like_tcps_gets_its_part() {
    for direction in [Read, Write] {
        for round_trip_us in [200, 1_000, 10_000] {
            let share = beside_a_flow(direction, round_trip_us);
            assert!(
                (0.12..=0.75).contains(&share),
                "{direction:?}, {round_trip_us} us: {share:.2}"
            );
        }
    }
}

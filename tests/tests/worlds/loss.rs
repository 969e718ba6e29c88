//! Reads and writes on a network that loses, doubles and reorders packets: no wrong byte, one
//! result for each range, and nothing is left behind.

use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Grant};
use feedrail_target::stepped::Stop;
use feedrail_tests::world::{
    Disk, HostId, Random, TargetId, TargetOptions, Trace, Workload, WorkloadOptions, World,
    only_seed, with_seeds,
};
use rdma::sim::SimConfig;

/// Bytes of each host's area.
const AREA: u64 = 192 << 10;
/// Ranges of each workload, besides reading the whole area at the end.
const RANGES: u32 = 200;
/// Far more than a run takes.
const LIMIT: Duration = Duration::from_secs(600);

/// The events of a run.
struct Outcome {
    trace: Trace,
    ranges: u32,
    faults: Faults,
}

/// Counts of faults by kind.
#[derive(Default)]
struct Faults {
    lost: u64,
    duplicated: u64,
    reordered: u64,
    retransmitted: u64,
    naks: u64,
    dropped: u64,
    timeouts: u64,
    connections_lost: u64,
}

/// 5 % loss, 2 % duplication, reordering and jitter; the rest varies with the seed.
fn network(random: &mut Random) -> SimConfig {
    SimConfig {
        latency: Duration::from_micros(random.within(2..40)),
        jitter: Duration::from_micros(random.within(1..40)),
        loss_ppm: 50_000,
        duplication_ppm: 20_000,
        reordering_ppm: 20_000,
        reordering_delay: Duration::from_micros(random.within(20..400)),
        corruption_ppm: 1_000,
        receive_buffer_bytes: random.pick(&[48 << 10, 208 << 10, 1 << 20]),
        path_mtu: random.pick(&[1024, 1024, 4096]),
        ..SimConfig::default()
    }
}

fn add_target(world: &mut World, random: &mut Random) -> TargetId {
    let delay = Duration::from_micros(random.pick(&[0, 0, 150]));
    let disk = Disk::memory("disk", 2 * AREA).slow(delay);
    let mut options = TargetOptions { cores: random.pick(&[1, 1, 2]), ..TargetOptions::default() };
    options.limits.in_capsule_data_bytes = random.pick(&[0, 4096]);
    world.add_target(vec![disk], options)
}

fn add_host(world: &mut World, random: &mut Random) -> HostId {
    let options = ControllerOptions::new()
        .io_queues(random.pick(&[1, 2, 3]))
        .queue_entries(random.pick(&[4, 16, 64]));
    world.add_host(options)
}

fn workload(
    world: &mut World,
    (host, target): (HostId, TargetId),
    random: &mut Random,
) -> Workload {
    let index = if world.host(host).ip().to_string().ends_with('1') { 0 } else { 1 };
    let namespace = world.open(host, target, 1);
    let options = WorkloadOptions {
        area: index * AREA..(index + 1) * AREA,
        ranges: RANGES,
        depth: 12,
        longest: 24_000,
        write_percent: 45,
        grant: random.pick(&[Grant::Persistent, Grant::PerCommand]),
        may_fail: false,
        seed: random.next_u64(),
    };
    Workload::new(world.host(host), namespace, options)
}

/// Two hosts and one or two targets, from the first packet to the last.
fn run(seed: u64) -> Outcome {
    let random = &mut Random::new(seed);
    let mut world = World::new(seed, network(random));
    let targets: Vec<TargetId> =
        (0..random.pick(&[1, 1, 2])).map(|_| add_target(&mut world, random)).collect();
    let hosts = [add_host(&mut world, random), add_host(&mut world, random)];
    let pairs = hosts.iter().flat_map(|&host| targets.iter().map(move |&target| (host, target)));
    let pairs: Vec<_> = pairs.collect();
    let mut workloads: Vec<Workload> =
        pairs.into_iter().map(|pair| workload(&mut world, pair, random)).collect();
    world.run_workloads(&mut workloads, LIMIT);
    workloads.iter_mut().for_each(Workload::read_all);
    world.run_workloads(&mut workloads, LIMIT);

    let ranges = workloads.iter().map(|workload| workload.reads + workload.writes).sum();
    let faults = faults(&mut world, &hosts);
    drop(workloads);
    world.expect_clean(LIMIT);
    for target in targets {
        world.target(target).stop(Stop::Drain);
        world.run_until("the target ends", LIMIT, |world| world.target(target).is_over());
    }
    Outcome { trace: world.trace(), ranges, faults }
}

fn faults(world: &mut World, hosts: &[HostId]) -> Faults {
    let (network, providers) = (world.network().stats(), world.network_stats());
    let lost = |host: &HostId| world.host(*host).host.counters().connections_lost;
    Faults {
        lost: network.lost,
        duplicated: network.duplicated,
        reordered: network.reordered,
        retransmitted: providers.packets_retransmitted,
        naks: providers.sequence_naks_sent,
        dropped: providers.packets_dropped,
        timeouts: providers.ack_timeouts,
        connections_lost: hosts.iter().map(lost).sum(),
    }
}

fn twenty_five_seeds(first: u64) {
    let mut total = Faults::default();
    with_seeds(first..first + 25, |seed| {
        let Outcome { ranges, faults, .. } = run(seed);
        assert!(ranges >= 2 * RANGES, "only {ranges} ranges");
        total.lost += faults.lost;
        total.duplicated += faults.duplicated;
        total.reordered += faults.reordered;
        total.retransmitted += faults.retransmitted;
        total.naks += faults.naks;
        total.dropped += faults.dropped;
        total.timeouts += faults.timeouts;
        if faults.connections_lost > 0 {
            println!("seed {seed}: {} connections lost", faults.connections_lost);
        }
        total.connections_lost += faults.connections_lost;
    });
    if only_seed().is_none() {
        assert!(total.lost > 1000 && total.duplicated > 1000 && total.reordered > 1000);
        assert!(total.retransmitted > 1000 && total.naks > 1000 && total.dropped > 1000);
        assert!(total.timeouts > 0);
        assert_eq!(total.connections_lost, 0, "such a network breaks no connection");
    }
}

#[test]
fn seeds_0_to_24() {
    twenty_five_seeds(0);
}

#[test]
fn seeds_25_to_49() {
    twenty_five_seeds(25);
}

#[test]
fn seeds_50_to_74() {
    twenty_five_seeds(50);
}

#[test]
fn seeds_75_to_99() {
    twenty_five_seeds(75);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let seed = only_seed().unwrap_or(4);
    let (first, again, other) = (run(seed).trace, run(seed).trace, run(seed + 1).trace);
    assert_eq!(first, again, "a run is a function of its seed");
    assert_ne!(first, other, "the trace tells runs apart");
}

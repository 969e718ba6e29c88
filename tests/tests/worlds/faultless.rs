//! The simulated world: without faults, and with many hosts.

use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Grant, Nsid};
use feedrail_tests::world::{Disk, DiskConfig, TargetOptions, Workload, WorkloadOptions, World};
use rdma::sim::SimConfig;

#[test]
fn writes_read_back_and_nothing_leaks() {
    let mut world = World::new(1, SimConfig::default());
    let disk = Disk::memory("disk", 1 << 20);
    let target = world.add_target(vec![disk], TargetOptions::default());
    let host = world.add_host(ControllerOptions::default());
    let namespace = world.open(host, target, 1);
    let options = WorkloadOptions {
        area: 0..1 << 20,
        ranges: 100,
        depth: 8,
        longest: 100_000,
        write_percent: 50,
        grant: Grant::Persistent,
        may_fail: false,
        seed: 1,
    };
    let mut workloads = [Workload::new(world.host(host), namespace, options)];
    world.run_workloads(&mut workloads, Duration::from_secs(10));
    assert_eq!(workloads[0].reads + workloads[0].writes, 100);
    assert_eq!(world.network_stats().packets_retransmitted, 0, "nothing is lost");
    drop(workloads);
    world.expect_clean(Duration::from_secs(10));
}

/// Reads find all, the beginning or none of their bytes in the page cache.
#[test]
fn reads_are_right_whatever_the_page_cache_has() {
    let mut world = World::new(3, SimConfig::default());
    let disk = Disk::simulated("disk", vec![0; 1 << 20]).range_locks(true).cached_reads(true);
    let target = world.add_target(vec![disk], TargetOptions::default());
    let half_cached = DiskConfig {
        latency: Duration::from_micros(50),
        jitter: Duration::from_micros(500),
        cached_ppm: 500_000,
        ..DiskConfig::default()
    };
    world.target(target).set_disk_config(half_cached);
    let host = world.add_host(ControllerOptions::default());
    let namespace = world.open(host, target, 1);
    let options = WorkloadOptions {
        area: 0..1 << 20,
        ranges: 1000,
        depth: 8,
        longest: 100_000,
        write_percent: 50,
        grant: Grant::Persistent,
        may_fail: false,
        seed: 1,
    };
    let mut workloads = [Workload::new(world.host(host), namespace, options)];
    world.run_workloads(&mut workloads, Duration::from_secs(10));
    let stats = world.target(target).disk_stats();
    let reads = workloads[0].reads as u64;
    assert!(stats.cached > 100 && reads > 100, "{stats:?}");
    drop(workloads);
    world.expect_clean(Duration::from_secs(10));
}

#[test]
fn many_hosts_come_and_go_and_leave_nothing() {
    let mut world = World::new(7, SimConfig { loss_ppm: 10_000, ..SimConfig::default() });
    let disk = Disk::memory("disk", 1 << 20);
    let mut options = TargetOptions { cores: 2, ..TargetOptions::default() };
    options.limits.pool_bytes = 256 << 10;
    let target = world.add_target(vec![disk], options);
    let hosts: Vec<_> =
        (0..16).map(|_| world.add_host(ControllerOptions::new().io_queues(4))).collect();
    for round in 0..3 {
        // All hosts together, and in pairs that end at different times.
        let subsystem = world.target(target).subsystem();
        let connecting: Vec<_> =
            hosts.iter().map(|&host| world.host(host).host.connect(subsystem)).collect();
        let mut namespaces = Vec::new();
        for connecting in connecting {
            let controller = world.run(connecting).expect("there is room for all");
            let opening = controller.namespace(Nsid(1));
            namespaces.push(world.run(opening).expect("the namespace exists"));
        }
        let reads: Vec<_> = namespaces
            .iter()
            .map(|namespace| namespace.read_to_vec(round * 1000 + 1, 200_000))
            .collect();
        for read in reads {
            assert!(world.run(read).expect("a read").iter().all(|&byte| byte == 0));
        }
        drop(namespaces);
        world.expect_clean(Duration::from_secs(60));
    }
    assert!(hosts.iter().all(|&host| world.host(host).host.counters().connections_lost == 0));
}

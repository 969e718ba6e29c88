//! The simulated world without faults.

use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Grant};
use feedrail_tests::world::{Disk, TargetOptions, Workload, WorkloadOptions, World};
use rdma::sim::SimConfig;

#[test]
fn what_is_written_is_read_and_nothing_is_left() {
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

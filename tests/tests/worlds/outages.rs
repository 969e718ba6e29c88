//! Targets that crash, networks that part, hosts that vanish or do nothing.

use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, ErrorKind, Grant, Namespace, RangeOutcome, RegionSlice,
};
use feedrail_tests::world::{
    Disk, HostId, Random, TargetId, TargetOptions, Workload, WorkloadOptions, World, with_seeds,
};
use rdma::sim::SimConfig;
use rdma::{DeviceEvent, Time};

const AREA: u64 = 256 << 10;
const LIMIT: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);

fn impatient() -> ControllerOptions {
    ControllerOptions::new()
        .io_queues(2)
        .queue_entries(16)
        .keep_alive_ms(1_000)
        .connect_timeout(SECOND)
        .reconnect_delay(Duration::from_millis(200))
}

fn lossy() -> SimConfig {
    SimConfig {
        jitter: Duration::from_micros(20),
        loss_ppm: 20_000,
        duplication_ppm: 10_000,
        reordering_ppm: 10_000,
        ..SimConfig::default()
    }
}

fn one_of_each(seed: u64, disk: Disk, options: ControllerOptions) -> (World, HostId, TargetId) {
    let mut world = World::new(seed, lossy());
    let target = world.add_target(vec![disk], TargetOptions::default());
    let host = world.add_host(options);
    (world, host, target)
}

fn work(world: &World, host: HostId, namespace: Namespace, seed: u64) -> Workload {
    let options = WorkloadOptions {
        area: 0..AREA,
        ranges: 80,
        depth: 8,
        longest: 60_000,
        write_percent: 50,
        grant: [Grant::Persistent, Grant::PerCommand][(seed % 2) as usize],
        may_fail: false,
        seed,
    };
    Workload::new(world.host(host), namespace, options)
}

/// Runs a workload for a while, unless it ends before.
fn run_for(world: &mut World, workload: &mut [Workload], time: Duration) {
    let end = world.now() + time;
    while world.now() < end && !world.turn_workloads(workload) && world.step() {}
}

fn read(world: &mut World, namespace: &Namespace, offset: u64, length: usize) -> RangeOutcome {
    let reading = namespace.read(offset, RegionSlice::allocate(length, Grant::Persistent).unwrap());
    world.run(reading)
}

#[test]
fn ranges_survive_crashes_of_the_target() {
    with_seeds(0..20, |seed| {
        let random = &mut Random::new(seed);
        let (mut world, host, target) = one_of_each(seed, Disk::memory("disk", AREA), impatient());
        let namespace = world.open(host, target, 1);
        let mut workloads = [work(&world, host, namespace, seed)];
        for _ in 0..3 {
            workloads[0].extend(320);
            run_for(&mut world, &mut workloads, Duration::from_micros(random.within(1..3_000)));
            assert!(workloads[0].in_flight() > 0, "something is to be interrupted");
            let silently = random.percent(50);
            if silently {
                world.cut(host, target);
            }
            world.target(target).crash();
            run_for(&mut world, &mut workloads, Duration::from_millis(random.within(1..5_000)));
            world.target(target).start();
            world.heal(host, target);
            run_for(&mut world, &mut workloads, Duration::from_millis(random.within(1..3_000)));
        }
        world.run_workloads(&mut workloads, LIMIT);
        workloads[0].read_all();
        world.run_workloads(&mut workloads, LIMIT);
        let counters = world.host(host).host.counters();
        assert!(counters.reconnects > 0 && counters.retries > 0, "{counters:?}");
        drop(workloads);
        world.expect_clean(LIMIT);
    });
}

/// A device reports that a queue pair, a completion queue or the whole of it failed: commands in
/// flight are sent again over new connections.
#[test]
fn ranges_survive_device_events() {
    with_seeds(0..6, |seed| {
        let (mut world, host, target) = one_of_each(seed, Disk::memory("disk", AREA), impatient());
        let namespace = world.open(host, target, 1);
        let mut workloads = [work(&world, host, namespace, seed)];
        for reported in 1..=4 {
            workloads[0].extend(80);
            run_for(&mut world, &mut workloads, Duration::from_millis(1));
            assert!(workloads[0].in_flight() > 0, "something is to be interrupted");
            let queue_pairs = world.host(host).device().queue_pairs();
            let event = match reported {
                1 => DeviceEvent::QpFatal { qpn: queue_pairs[0] },
                2 => DeviceEvent::QpFatal { qpn: queue_pairs[queue_pairs.len() - 1] },
                3 => DeviceEvent::CqError,
                _ => DeviceEvent::DeviceFatal,
            };
            world.network().raise(world.host(host).ip(), event);
            world.run_workloads(&mut workloads, LIMIT);
            let counters = world.host(host).host.counters();
            assert_eq!(counters.connections_lost, reported, "{event:?}: {counters:?}");
        }
        workloads[0].read_all();
        world.run_workloads(&mut workloads, LIMIT);
        drop(workloads);
        world.expect_clean(LIMIT);
    });
}

#[test]
fn an_absent_target_is_an_error_in_time() {
    for (io_timeout, loss_timeout) in [(5, 60), (60, 5)] {
        let options =
            impatient().io_timeout(SECOND * io_timeout).loss_timeout(SECOND * loss_timeout);
        let (mut world, host, target) = one_of_each(1, Disk::memory("disk", AREA), options);
        let namespace = world.open(host, target, 1);
        world.target(target).crash();
        let start = world.now();
        let outcome = read(&mut world, &namespace, 1, 1000);
        let error = outcome.result.unwrap_err();
        let took = world.now() - start;
        // The loss is noticed a little later than it happens.
        assert!((SECOND * 4..SECOND * 8).contains(&took), "{took:?}: {error}");
        assert!(matches!(error.kind(), ErrorKind::Lost { .. }), "{error}");
        assert!(error.to_string().contains("10.0.0.1:4420"), "{error}");
    }
}

#[test]
fn a_replaced_namespace_is_an_error() {
    let replacements = [
        ("another identity", Disk::memory("other", AREA)),
        ("shorter", Disk::memory("disk", AREA / 2)),
        ("longer", Disk::memory("disk", 2 * AREA)),
    ];
    for (what, replacement) in replacements {
        let disk = Disk::memory("disk", AREA);
        let (mut world, host, target) = one_of_each(2, disk.clone(), impatient());
        let namespace = world.open(host, target, 1);
        let bytes = RegionSlice::from_vec(vec![7; 4096], Grant::Persistent);
        let writing = namespace.write(0, bytes);
        assert!(world.run(writing).result.is_ok());
        world.target(target).crash();
        let reading = namespace.read(0, RegionSlice::allocate(4096, Grant::Persistent).unwrap());
        world.pass(SECOND);
        world.target(target).disks = vec![replacement];
        world.target(target).start();
        let RangeOutcome { slice, result } = world.run(reading);
        let error = result.expect_err(what);
        assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{what}: {error}");
        assert!(slice.bytes().iter().all(|&byte| byte == 0), "{what}: bytes of another namespace");
        // It stays so, also for later requests, and for writes.
        let slice = RegionSlice::from_vec(vec![9; 512], Grant::Persistent);
        let writing = namespace.write(0, slice);
        assert!(world.run(writing).result.is_err(), "{what}");
        // A host that opens it again gets the present content.
        let reopened = world.open(host, target, 1);
        assert_eq!(*read(&mut world, &reopened, 0, 512).slice.bytes(), [0; 512], "{what}");
    }
}

#[test]
fn returned_memory_is_not_written() {
    with_seeds(0..40, |seed| {
        let random = &mut Random::new(seed);
        let delay = Duration::from_millis(random.within(1..1500));
        let options = impatient()
            .io_timeout(Duration::from_millis(random.within(300..1000)))
            .abort_timeout(Duration::from_millis(random.within(1..300)));
        let disk = Disk::memory("disk", AREA).slow(delay);
        let (mut world, host, target) = one_of_each(seed, disk, options);
        let namespace = world.open(host, target, 1);
        world.set_faults(|faults| {
            faults.reordering_ppm = 100_000;
            faults.reordering_delay = Duration::from_millis(400);
            faults.bandwidth = Some(1 << 20);
        });
        let mut pending: Vec<_> = (0..6)
            .map(|at| {
                let slice = RegionSlice::from_vec(vec![0xA5; 30_000], Grant::Persistent);
                namespace.read(at * 30_000, slice)
            })
            .collect();
        if random.percent(50) {
            world.pass(Duration::from_millis(random.within(1..1000)));
            world.cut(host, target);
            world.pass(Duration::from_millis(random.within(1..1000)));
            world.heal(host, target);
        }
        let mut returned: Vec<(RegionSlice, Time)> = Vec::new();
        for reading in pending.drain(..) {
            let RangeOutcome { mut slice, result } = world.run(reading);
            match result {
                Ok(()) => assert!(slice.bytes().iter().all(|&byte| byte == 0), "the disk is empty"),
                Err(error) => {
                    let kind = error.kind();
                    let is_late =
                        matches!(kind, ErrorKind::TimedOut { .. } | ErrorKind::Lost { .. });
                    assert!(is_late, "{error}");
                }
            }
            slice.fill(0x5C);
            returned.push((slice, world.now()));
        }
        for _ in 0..50 {
            world.pass(Duration::from_millis(100));
            for (slice, since) in &returned {
                assert!(slice.bytes().iter().all(|&byte| byte == 0x5C), "returned at {since:?}");
            }
        }
    });
}

#[test]
fn acknowledged_writes_survive_partitions() {
    with_seeds(0..20, |seed| {
        let random = &mut Random::new(seed);
        let options = impatient().io_timeout(SECOND * 3);
        let delay = Duration::from_micros(random.pick(&[0, 200, 3_000]));
        let disk = Disk::memory("disk", AREA).slow(delay);
        let (mut world, host, target) = one_of_each(seed, disk, options);
        let namespace = world.open(host, target, 1);
        let mut workloads = [Workload::new(
            world.host(host),
            namespace,
            WorkloadOptions {
                area: 0..AREA,
                ranges: 0,
                depth: 8,
                longest: 40_000,
                write_percent: 80,
                grant: Grant::Persistent,
                may_fail: true,
                seed,
            },
        )];
        for _ in 0..4 {
            workloads[0].extend(60);
            run_for(&mut world, &mut workloads, Duration::from_micros(random.within(1..5_000)));
            world.cut(host, target);
            run_for(&mut world, &mut workloads, Duration::from_millis(random.within(1..6_000)));
            world.heal(host, target);
            run_for(&mut world, &mut workloads, Duration::from_millis(random.within(1..6_000)));
        }
        world.run_workloads(&mut workloads, LIMIT);
        world.target(target).crash();
        world.target(target).start();
        workloads[0].read_all();
        world.run_workloads(&mut workloads, LIMIT);
        assert!(workloads[0].writes > 20, "{} writes", workloads[0].writes);
        drop(workloads);
        world.expect_clean(LIMIT);
    });
}

#[test]
fn an_idle_host_stays_connected() {
    let (mut world, host, target) = one_of_each(5, Disk::memory("disk", AREA), impatient());
    let namespace = world.open(host, target, 1);
    world.pass(SECOND * 10);
    let counters = world.host(host).host.counters();
    assert_eq!(counters.connections_lost, 0);
    assert!(counters.keep_alives >= 10, "{counters:?}");
    let start = world.now();
    assert!(read(&mut world, &namespace, 3, 5).result.is_ok());
    assert!(world.now() - start < SECOND, "no reconnect was needed");
    assert_eq!(world.host(host).host.counters().reconnects, 0);
}

#[test]
fn a_vanished_hosts_resources_are_freed() {
    with_seeds(0..20, |seed| {
        let random = &mut Random::new(seed);
        let disk = Disk::memory("disk", 2 * AREA).slow(Duration::from_micros(300));
        let (mut world, good, target) = one_of_each(seed, disk, impatient());
        let namespace = world.open(good, target, 1);
        let mut staying = [work(&world, good, namespace, seed)];
        staying[0].extend(200);
        let bad = world.add_host(impatient());
        let namespace = world.open(bad, target, 1);
        let area = AREA..2 * AREA;
        let options = WorkloadOptions {
            area,
            ranges: 1000,
            depth: 16,
            longest: 60_000,
            write_percent: 50,
            grant: Grant::Persistent,
            may_fail: false,
            seed,
        };
        let mut leaving = vec![Workload::new(world.host(bad), namespace, options)];
        let end = world.now() + Duration::from_micros(random.within(1..10_000));
        while world.now() < end {
            world.turn_workloads(&mut staying);
            world.turn_workloads(&mut leaving);
            world.step();
        }
        assert_eq!(world.target(target).associations().controllers().len(), 2);
        if random.percent(50) {
            world.cut(bad, target);
        }
        leaving.clear();
        world.vanish(bad);
        world.run_workloads(&mut staying, LIMIT);
        assert_eq!(world.host(good).host.counters().connections_lost, 0);
        world.run_until("the controller is gone", SECOND * 10, |world| {
            world.target(target).associations().controllers().len() == 1
        });
        staying[0].extend(20);
        world.run_workloads(&mut staying, LIMIT);
        drop(staying);
        world.expect_clean(LIMIT);
    });
}

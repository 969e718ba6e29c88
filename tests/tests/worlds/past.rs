//! Hosts that reconnect while their earlier commands are still in progress.

use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, ErrorKind, Grant, Namespace, RangeOutcome, RegionSlice,
};
use feedrail_tests::world::{Disk, DiskConfig, HostId, TargetId, TargetOptions, World, with_seeds};
use rdma::sim::SimConfig;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(600);
const BLOCK: usize = 4096;
/// The longest that one command may be, in bytes.
const LONG: usize = 32 << 10;

/// A read or write that the disk stalls, a host that gives it up, and a disconnection that is lost
/// on the way.
struct Story {
    writes: bool,
    disk_stalls: Duration,
    /// How long after the disconnection no packet gets through.
    cut: Duration,
}

impl Story {
    /// Runs it; returns how long after the disconnection the host had written the same block again.
    fn tell(&self, seed: u64) -> Duration {
        let (mut world, target, host, namespace) = scene(seed);
        world.target(target).set_disk_config(stalling(self.disk_stalls));
        let slice = RegionSlice::from_vec(vec![1; BLOCK], Grant::Persistent);
        let old = match self.writes {
            true => namespace.write(0, slice),
            false => namespace.read(0, slice),
        };
        world.run_until("the disk has it", SECOND, |world| {
            world.target(target).disk_stats().stalls == 1
        });
        world.target(target).set_disk_config(DiskConfig::default());
        // Before the host tells to abort it.
        world.pass(SECOND * 9 / 10);
        world.cut(host, target);
        let error = world.run(old).result.expect_err("it is still in progress");
        assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
        assert_eq!(world.host(host).host.counters().connections_lost, 1);
        let disconnected = world.now();
        world.pass(self.cut);
        world.heal(host, target);
        while !write(&mut world, &namespace, 2) {}
        let took = world.now() - disconnected;
        assert_eq!(read(&mut world, &namespace), [2; BLOCK]);
        world.pass(self.disk_stalls);
        assert_eq!(read(&mut world, &namespace), [2; BLOCK], "the old write overtook the new one");
        drop(namespace);
        world.expect_clean(LIMIT);
        took
    }
}

/// A target with a disk, and a host that soon gives up, with the disk open.
fn scene(seed: u64) -> (World, TargetId, HostId, Namespace) {
    let mut world = World::new(seed, SimConfig::default());
    let disk = Disk::simulated("disk", vec![0; 64 << 10]);
    let target = world.add_target(vec![disk], TargetOptions::default());
    let host = world.add_host(
        ControllerOptions::new()
            .io_timeout(SECOND)
            .abort_timeout(SECOND)
            .connect_timeout(Duration::from_millis(300))
            .reconnect_delay(Duration::from_millis(100)),
    );
    let namespace = world.open(host, target, 1);
    (world, target, host, namespace)
}

/// A disk that delays every call by so much.
fn stalling(stall: Duration) -> DiskConfig {
    DiskConfig { stall_ppm: 1_000_000, stall, ..DiskConfig::default() }
}

fn write(world: &mut World, namespace: &Namespace, byte: u8) -> bool {
    let slice = RegionSlice::from_vec(vec![byte; BLOCK], Grant::Persistent);
    let writing = namespace.write(0, slice);
    world.run(writing).result.is_ok()
}

fn read(world: &mut World, namespace: &Namespace) -> [u8; BLOCK] {
    let slice = RegionSlice::allocate(BLOCK, Grant::Persistent).unwrap();
    let reading = namespace.read(0, slice);
    let outcome = world.run(reading);
    outcome.result.expect("the target answers");
    outcome.slice.bytes()[..].try_into().expect("a block")
}

/// The host says it until the target answers. (Whether the disk can still be kept from writing
/// depends on the seed.)
#[test]
fn a_confirmed_disconnect_allows_reconnecting_at_once() {
    with_seeds(0..8, |seed| {
        let (disk_stalls, cut) = (SECOND * 4, Duration::from_millis(300));
        let took = Story { writes: true, disk_stalls, cut }.tell(seed);
        assert!(took < SECOND * 4, "as soon as the disk has done it: {took:?}");
    });
}

/// The disconnection is lost until the host stops repeating it.
#[test]
fn a_host_reconnects_after_the_targets_timeout() {
    with_seeds(0..8, |seed| {
        for disk_stalls in [SECOND * 12, SECOND * 20] {
            let took = Story { writes: true, disk_stalls, cut: SECOND * 7 }.tell(seed);
            assert!(took > SECOND * 11, "two timeouts and a second: {took:?}");
        }
    });
}

/// The second disconnection would come later.
#[test]
fn a_host_without_writes_reconnects_at_once() {
    let (disk_stalls, cut) = (SECOND * 4, Duration::from_millis(300));
    let took = Story { writes: false, disk_stalls, cut }.tell(1);
    assert!(took < Duration::from_millis(500), "{took:?}");
}

/// A target that stood still handles earlier messages when it runs again: by then the host has
/// reconnected.
#[test]
fn a_stalled_target_drops_commands_of_departed_hosts() {
    with_seeds(0..8, |seed| {
        let (mut world, target, host, namespace) = scene(seed);
        // Should the old command begin, it takes longer than the host needs to come back.
        world.target(target).set_disk_config(stalling(SECOND * 4));
        let goes_on = world.now() + SECOND * 16;
        world.pause_target(target, SECOND * 16);
        let old = namespace.write_zeroes(0, BLOCK as u64);
        world.pass(Duration::from_millis(10));
        // It is there, and nothing else gets there until the target is about to run again.
        world.cut(host, target);
        world.run(old).expect_err("the old connection is gone");
        let rest = goes_on - world.now();
        world.pass(rest - Duration::from_millis(10));
        world.heal(host, target);
        world.pass(Duration::from_millis(11));
        world.target(target).set_disk_config(DiskConfig::default());
        while !write(&mut world, &namespace, 2) {}
        world.pass(SECOND * 8);
        let now = read(&mut world, &namespace);
        assert!(now == [2; BLOCK], "the old command overtook the new write: {}", now[0]);
        drop(namespace);
        world.expect_clean(LIMIT);
    });
}

/// The smallest target: a block that is lent in turn, and a second one.
fn small_target(world: &mut World) -> TargetId {
    let mut options = TargetOptions::default();
    options.limits.pool_bytes = options.limits.least_pool_bytes(1);
    world.add_target(vec![Disk::simulated("disk", vec![0; 64 << 10])], options)
}

fn read_long(namespace: &Namespace) -> impl Future<Output = RangeOutcome> + use<> {
    namespace.read(0, RegionSlice::allocate(LONG, Grant::Persistent).unwrap())
}

#[test]
fn a_hung_read_blocks_no_later_buffers() {
    with_seeds(0..8, |seed| {
        let mut world = World::new(seed, SimConfig::default());
        let target = small_target(&mut world);
        let host = world.add_host(
            ControllerOptions::new().io_queues(1).io_timeout(SECOND).abort_timeout(SECOND),
        );
        let namespace = world.open(host, target, 1);
        world.target(target).hang_reads(1);
        let hung = world.run(read_long(&namespace)).result.expect_err("it hangs");
        assert!(matches!(hung.kind(), ErrorKind::TimedOut { .. }), "{hung}");
        for _ in 0..3 {
            world.run(read_long(&namespace)).result.expect("the disk does all else");
        }
    });
}

#[test]
fn ended_connections_keep_only_buffers_in_storage() {
    with_seeds(0..8, |seed| {
        let mut world = World::new(seed, SimConfig::default());
        let target = small_target(&mut world);
        let options = ControllerOptions::new().io_queues(1);
        let host = world.add_host(options);
        let namespace = world.open(host, target, 1);
        world.target(target).hang_reads(1);
        let slice = RegionSlice::allocate(BLOCK, Grant::Persistent).unwrap();
        let _hangs = namespace.read(0, slice);
        world
            .run_until("a read hangs", SECOND, |world| world.target(target).disk_stats().hung == 1);
        let latency = Duration::from_millis(10);
        world.target(target).set_disk_config(DiskConfig { latency, ..DiskConfig::default() });
        let _is_not_acknowledged = read_long(&namespace);
        world.run_until("the disk has the other one", SECOND, |world| {
            world.target(target).disk_stats().calls == 2
        });
        world.cut(host, target);
        let used = |bytes: usize| format!(", {bytes} bytes of the pool");
        assert!(world.target(target).leftovers().contains(&used(BLOCK + LONG)));
        world.run_until("the buffer of the other one is back", SECOND * 60, |world| {
            world.target(target).leftovers().contains(&used(BLOCK))
        });
    });
}

//! One namespace over the paths to two targets: reads and writes, and what becomes of them when a
//! path is lost.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, ErrorKind, Grant, Namespace, Nsid, Pending, RangeOutcome, RegionSlice,
    ReplicaPolicy, SubsystemAddress, SubsystemPaths,
};
use nvme_proto::async_event::AsyncEvent;
use nvme_proto::identify::{Cmic, Oaes};
use nvme_proto::log::AnaState;
use nvme_proto::{NvmOpcode, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Fake, Seen, ip, pattern};
use super::world::{World, write_range};

const BLOCKS: usize = 1024;
const BLOCK: u64 = 512;
/// Time after which a target that receives nothing must know that a connection has ended: twice the
/// keep alive timeout and a second.
const FENCE: Duration = Duration::from_secs(3);

/// Two targets of one subsystem; each can be cut off.
fn two_targets() -> World {
    let options = ControllerOptions::new()
        .keep_alive_ms(1_000)
        .silence_timeout(Duration::from_millis(300))
        .reconnect_delay(Duration::from_millis(200))
        .loss_timeout(Duration::from_secs(60));
    let mut world = World::with(1, SimConfig::default(), BLOCKS, options);
    let other = Fake::new(&world.network, SocketAddr::new(ip(3), 4420), BLOCKS);
    world.others.push(other);
    for fake in [&mut world.fake, &mut world.others[0]] {
        fake.identify.cmic = Cmic::new().with_ana(true);
        fake.identify.oaes = Oaes::new().with_ana_change(true);
        fake.namespace.anagrpid.set(1);
    }
    world
}

fn open(world: &mut World, policy: ReplicaPolicy) -> (SubsystemPaths, Namespace) {
    let connecting = world.host.connect_paths([World::target(), other()]);
    let paths = world.run(connecting).unwrap();
    let opening = paths.multipath_namespace(Nsid(1), policy);
    let namespace = world.run(opening).unwrap();
    (paths, namespace)
}

fn is_of(opcode: NvmOpcode) -> impl Fn(&Seen) -> bool {
    move |seen| !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == opcode.0
}

/// Commands of this kind that each target has received.
fn received(world: &World, opcode: NvmOpcode) -> [usize; 2] {
    [&world.fake, &world.others[0]].map(|fake| fake.count(is_of(opcode)))
}

fn writes(world: &World) -> [usize; 2] {
    received(world, NvmOpcode::WRITE)
}

/// Receives writes, and neither carries them out nor answers.
fn swallow_writes(fake: &mut Fake) {
    fake.script = Box::new(|seen| match is_of(NvmOpcode::WRITE)(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
}

fn refuse(fake: &mut Fake, opcode: NvmOpcode, status: Status) {
    fake.script = Box::new(move |seen| match is_of(opcode)(seen) {
        true => Action::Fail(status),
        false => Action::Normal,
    });
}

fn cut_off(world: &World, last: u8) {
    world.network.cut(ip(1), ip(last));
}

fn slice(byte: u8, length: usize) -> RegionSlice {
    RegionSlice::from_vec(vec![byte; length], Grant::Persistent)
}

/// How long something takes, which has to end within a minute.
#[track_caller]
fn time_of<T>(world: &mut World, mut pending: Pending<T>) -> (Duration, T) {
    let begin = world.now;
    let output = within(world, &mut pending, Duration::from_secs(60)).expect("it ends");
    (world.now - begin, output)
}

/// Result of a pending operation, if that comes within a time.
fn within<T>(world: &mut World, pending: &mut Pending<T>, limit: Duration) -> Option<T> {
    world.run_within(Pin::new(pending), limit)
}

/// A write to the first block that the first target swallowed.
fn swallowed_write(world: &mut World, namespace: &Namespace) -> Pending<RangeOutcome> {
    swallow_writes(&mut world.fake);
    let mut writing = namespace.write(0, slice(1, 512));
    assert!(within(world, &mut writing, Duration::from_millis(50)).is_none());
    assert_eq!(writes(world), [1, 0]);
    writing
}

/// One like that, of a target that was cut off then.
fn lost_write(world: &mut World, namespace: &Namespace) -> Pending<RangeOutcome> {
    let writing = swallowed_write(world, namespace);
    cut_off(world, 2);
    writing
}

fn other() -> SubsystemAddress {
    SubsystemAddress { address: SocketAddr::new(ip(3), 4420), ..World::target() }
}

/// A namespace that has the path to the first target only.
fn open_first(world: &mut World) -> (SubsystemPaths, Namespace) {
    let connecting = world.host.connect_paths([World::target()]);
    let paths = world.run(connecting).unwrap();
    let opening = paths.multipath_namespace(Nsid(1), ReplicaPolicy::RoundRobin);
    let namespace = world.run(opening).unwrap();
    (paths, namespace)
}

/// Makes a namespace use the paths to these addresses; without an error.
fn change_to(
    world: &mut World,
    paths: &SubsystemPaths,
    namespace: &Namespace,
    targets: &[SubsystemAddress],
) -> SubsystemPaths {
    let changing = paths.changed_to(targets.iter().copied());
    let paths = world.run(changing).unwrap();
    let left_out = world.run(namespace.change_paths(&paths)).unwrap();
    assert!(left_out.is_empty(), "{left_out:?}");
    assert_eq!(namespace.paths().count(), targets.len());
    paths
}

/// Receives reads, and does not answer.
fn swallow_reads(fake: &mut Fake) {
    fake.script = Box::new(|seen| match is_of(NvmOpcode::READ)(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
}

/// A read of the first block that a target does not answer; each has had so many then.
fn swallowed_read(
    world: &mut World,
    namespace: &Namespace,
    expected: [usize; 2],
) -> Pending<RangeOutcome> {
    let mut reading = namespace.read(0, slice(0, 512));
    assert!(within(world, &mut reading, Duration::from_millis(50)).is_none());
    assert_eq!(received(world, NvmOpcode::READ), expected);
    reading
}

/// The bytes of the first block.
fn check_first_block(outcome: RangeOutcome) {
    let RangeOutcome { slice, result } = outcome;
    result.unwrap();
    assert!(slice.to_vec().into_iter().eq((0..512).map(pattern)));
}

#[test]
fn a_namespace_takes_new_paths_and_leaves_old_ones() {
    let mut world = two_targets();
    let (paths, namespace) = open_first(&mut world);
    let clone = namespace.clone();
    let read = |world: &mut World| {
        let outcomes = [(); 4].map(|()| world.read(&clone, 0, 512, Grant::Persistent));
        assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()));
        received(world, NvmOpcode::READ)
    };
    assert_eq!(read(&mut world), [4, 0]);
    let both = change_to(&mut world, &paths, &namespace, &[World::target(), other()]);
    assert_eq!(read(&mut world), [6, 2]);
    assert_eq!(world.fake.connections, 2, "the connection is the one that there was");
    let one = change_to(&mut world, &both, &namespace, &[other()]);
    assert_eq!(read(&mut world), [6, 6]);
    world.run(namespace.flush()).unwrap();
    assert_eq!(received(&world, NvmOpcode::FLUSH), [0, 1]);
    assert!(world.fake.is_connected(), "others have handles of it");
    drop((paths, both));
    world.pass(Duration::from_secs(1));
    assert!(!world.fake.is_connected() && world.others[0].is_connected());
    // And back, while the handle of the paths is gone.
    let back = change_to(&mut world, &one, &namespace, &[World::target(), other()]);
    drop((one, back));
    world.pass(Duration::from_secs(1));
    assert_eq!(read(&mut world), [8, 8]);
    assert_eq!(world.host.counters().failovers, 0);
}

#[test]
fn what_is_under_way_on_a_path_that_was_left_ends_there() {
    let mut world = two_targets();
    let (paths, namespace) = open_first(&mut world);
    let writing = swallowed_write(&mut world, &namespace);
    change_to(&mut world, &paths, &namespace, &[other()]);
    drop(paths);
    world.pass(Duration::from_secs(1));
    world.write(&namespace, BLOCK, &[3; 512]).result.unwrap();
    assert!(world.fake.is_connected(), "a write is in progress there");
    world.fake.complete_ignored(Status::SUCCESS);
    world.run(writing).result.unwrap();
    world.pass(Duration::from_secs(1));
    assert!(!world.fake.is_connected());
    assert_eq!((writes(&world), world.host.counters().failovers), ([1, 1], 0));
}

#[test]
fn what_is_under_way_on_a_path_that_was_left_goes_on_over_new_ones() {
    let mut world = two_targets();
    let (paths, namespace) = open_first(&mut world);
    swallow_reads(&mut world.fake);
    let reading = swallowed_read(&mut world, &namespace, [1, 0]);
    change_to(&mut world, &paths, &namespace, &[other()]);
    world.fake.disconnect_all(world.now);
    let (took, outcome) = time_of(&mut world, reading);
    check_first_block(outcome);
    assert!(took < Duration::from_millis(100), "{took:?}");
    assert_eq!(received(&world, NvmOpcode::READ), [1, 1]);
}

#[test]
fn a_range_that_waits_takes_a_new_path() {
    let mut world = two_targets();
    let (paths, namespace) = open_first(&mut world);
    cut_off(&world, 2);
    world.pass(Duration::from_secs(5));
    let mut reading = namespace.read(0, slice(0, 512));
    let mut writing = namespace.write(BLOCK, slice(9, 512));
    assert!(within(&mut world, &mut reading, Duration::from_secs(5)).is_none());
    assert!(within(&mut world, &mut writing, Duration::from_secs(1)).is_none());
    change_to(&mut world, &paths, &namespace, &[World::target(), other()]);
    check_first_block(time_of(&mut world, reading).1);
    world.run(writing).result.unwrap();
    assert_eq!((received(&world, NvmOpcode::READ), writes(&world)), ([0, 1], [0, 1]));
}

#[test]
fn a_range_keeps_the_path_that_it_went_on_over() {
    let mut world = two_targets();
    let (paths, namespace) = open_first(&mut world);
    swallow_reads(&mut world.fake);
    swallow_reads(&mut world.others[0]);
    let mut reading = swallowed_read(&mut world, &namespace, [1, 0]);
    let second = change_to(&mut world, &paths, &namespace, &[other()]);
    drop(paths);
    world.fake.disconnect_all(world.now);
    assert!(within(&mut world, &mut reading, Duration::from_millis(50)).is_none());
    assert_eq!(received(&world, NvmOpcode::READ), [1, 1], "it continued there");
    world.fake.script = Box::new(|_| Action::Normal);
    change_to(&mut world, &second, &namespace, &[World::target()]);
    drop(second);
    assert!(within(&mut world, &mut reading, Duration::from_secs(1)).is_none());
    assert!(world.others[0].is_connected());
    world.others[0].complete_ignored(Status::SUCCESS);
    world.run(reading).result.unwrap();
    world.pass(Duration::from_secs(1));
    assert!(!world.others[0].is_connected());
    assert_eq!(received(&world, NvmOpcode::READ), [1, 1]);
}

#[test]
fn paths_that_are_of_no_use_are_left_out() {
    let mut world = two_targets();
    let (paths, namespace) = open_first(&mut world);
    world.others[0].uuid = [8; 16];
    let changing = paths.changed_to([World::target(), other()]);
    let both = world.run(changing).unwrap();
    let left_out = world.run(namespace.change_paths(&both)).unwrap();
    let [error] = &left_out[..] else { panic!("{left_out:?}") };
    assert!(matches!(error.kind(), ErrorKind::Protocol(_)), "{error}");
    assert_eq!(error.target(), Some(&other()));
    let changing = both.changed_to([other()]);
    let wrong = world.run(changing).unwrap();
    let error = world.run(namespace.change_paths(&wrong)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Protocol(_)), "{error}");
    drop((paths, both, wrong));
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    assert_eq!(received(&world, NvmOpcode::READ), [1, 0], "its path is what it was");
    let (controller, alone) = world.open();
    let connecting = world.host.connect_paths([World::target()]);
    let paths = world.run(connecting).unwrap();
    let error = world.run(alone.change_paths(&paths)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Invalid(_)), "{error}");
    drop(controller);
}

#[test]
fn reads_and_writes_take_the_paths_in_turn() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::RoundRobin);
    assert_eq!(namespace.paths().count(), 2);
    let range = |at| write_range(&namespace, at * BLOCK, slice(at as u8, 512));
    let writing = world.host.write_many((0..10).map(range));
    assert!(world.run(writing).iter().all(|outcome| outcome.result.is_ok()));
    assert_eq!(writes(&world), [5, 5]);
    for at in 0..10 {
        world.read(&namespace, at * BLOCK, 512, Grant::Persistent).result.unwrap();
    }
    assert_eq!(received(&world, NvmOpcode::READ), [5, 5]);
    assert_eq!(world.host.counters().failovers, 0);
}

#[test]
fn the_path_with_less_to_do_takes_the_next_range() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::QueueDepth);
    let lengths = [8, 2, 2, 2, 2, 8, 8];
    let range = |blocks: usize| write_range(&namespace, 0, slice(0, blocks * 512));
    let writing = world.host.write_many(lengths.map(range));
    assert!(world.run(writing).iter().all(|outcome| outcome.result.is_ok()));
    // 8 and the first of the last two; 2, 2, 2, 2 and the other.
    assert_eq!(writes(&world), [2, 5]);
}

#[test]
fn a_lost_write_goes_on_elsewhere_when_it_cannot_land_any_more() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    let lost = lost_write(&mut world, &namespace);
    let cut = world.now;
    world.pass(Duration::from_millis(500));

    // The loss was noticed. Only what overlaps the lost write waits.
    let (took, apart) = time_of(&mut world, namespace.write(BLOCK, slice(2, 512)));
    apart.result.unwrap();
    assert!(took < Duration::from_millis(10), "{took:?}");
    assert_eq!(writes(&world), [1, 1]);
    let (took, read) = time_of(&mut world, namespace.read(0, slice(0, 512)));
    read.result.unwrap();
    assert!(took < Duration::from_millis(10), "{took:?}");

    let mut later = namespace.write(0, slice(3, 1024));
    assert!(within(&mut world, &mut later, FENCE - Duration::from_secs(1)).is_none());
    assert_eq!(writes(&world)[1], 1);
    let (_, outcome) = time_of(&mut world, lost);
    outcome.result.unwrap();
    let took = world.now - cut;
    assert!(took > FENCE && took < FENCE + Duration::from_secs(1), "{took:?}");
    world.run(later).result.unwrap();
    assert_eq!(writes(&world)[1], 3);
    assert!(world.host.counters().failovers >= 1);
}

#[test]
fn a_lost_write_waits_for_as_long_as_the_storage_of_its_target_may_take() {
    for (quiesce_ms, quiesce) in [(1, 0), (5_000, 5)] {
        let mut world = two_targets();
        world.fake.identify.cqt.set(quiesce_ms);
        let (paths, namespace) = open(&mut world, ReplicaPolicy::First);
        assert_eq!(paths.controllers()[0].limits().unwrap().command_quiesce_ms, quiesce_ms);
        let lost = lost_write(&mut world, &namespace);
        let cut = world.now;
        let (_, outcome) = time_of(&mut world, lost);
        outcome.result.unwrap();
        let (took, until) = (world.now - cut, FENCE + Duration::from_secs(quiesce));
        assert!(took > until && took < until + Duration::from_secs(2), "{took:?}");
        assert_eq!(writes(&world), [1, 1]);
    }
}

#[test]
fn a_lost_write_goes_on_when_its_path_is_connected_again() {
    for comes_back in [true, false] {
        let mut world = two_targets();
        let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
        let mut writing = swallowed_write(&mut world, &namespace);
        // The target says that the connection has ended. Its storage may still work.
        world.fake.reject = Some(Vec::new());
        world.fake.disconnect_all(world.now);
        assert!(within(&mut world, &mut writing, Duration::from_secs(1)).is_none());
        if comes_back {
            world.fake.reject = None;
        }
        let (took, outcome) = time_of(&mut world, writing);
        outcome.result.unwrap();
        match comes_back {
            true => assert!(took < Duration::from_millis(500), "{took:?}"),
            false => assert!(took > FENCE - Duration::from_millis(1_100), "{took:?}"),
        }
        assert_eq!(writes(&world), [1, 1]);
        assert_eq!(world.others[0].disk()[..512], [1; 512]);
    }
}

#[test]
fn a_lost_write_stays_away_from_other_paths_while_its_target_is_busy_with_it() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    let mut writing = swallowed_write(&mut world, &namespace);
    world.fake.script = Box::new(|seen| match seen.sqe.is_fabrics() {
        true => Action::Fail(Status::CONNECT_CONTROLLER_BUSY),
        false => Action::Normal,
    });
    world.fake.disconnect_all(world.now);
    assert!(within(&mut world, &mut writing, 7 * FENCE).is_none());
    assert_eq!(writes(&world), [1, 0]);
    world.fake.script = Box::new(|_| Action::Normal);
    let (took, outcome) = time_of(&mut world, writing);
    outcome.result.unwrap();
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!(writes(&world), [1, 1]);
}

#[test]
fn other_controllers_of_the_host_wait_for_a_lost_write_as_well() {
    let mut world = two_targets();
    let (paths, namespace) = open(&mut world, ReplicaPolicy::First);
    let lost = lost_write(&mut world, &namespace);
    world.pass(Duration::from_millis(500));
    // Over the second path alone, which the first has nothing to do with.
    let alone = namespace.paths().nth(1).unwrap();
    drop((namespace, paths));
    let mut writing = alone.write(0, slice(3, 512));
    let zeroing = alone.write_zeroes(100 * BLOCK, BLOCK);
    let flushing = alone.flush();
    world.run(flushing).unwrap();
    assert!(within(&mut world, &mut writing, FENCE - Duration::from_secs(1)).is_none());
    assert_eq!(writes(&world)[1], 0);
    world.run(zeroing).unwrap();
    let (_, outcome) = time_of(&mut world, writing);
    outcome.result.unwrap();
    let (_, outcome) = time_of(&mut world, lost);
    outcome.result.unwrap();
}

#[test]
fn a_command_lost_on_the_way_holds_all_writes_to_its_namespace() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    world.fake.script = Box::new(|seen| match is_of(NvmOpcode::WRITE_ZEROES)(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
    let mut zeroing = namespace.write_zeroes(0, BLOCK);
    assert!(within(&mut world, &mut zeroing, Duration::from_millis(50)).is_none());
    cut_off(&world, 2);
    let begin = world.now;
    let (_, result) = time_of(&mut world, zeroing);
    result.unwrap();
    assert!(world.now - begin > FENCE, "{:?}", world.now - begin);
    assert_eq!(received(&world, NvmOpcode::WRITE_ZEROES), [1, 1]);
}

#[test]
fn refused_writes_take_another_path_at_once() {
    for (status, state) in [
        (Status::ANA_INACCESSIBLE, AnaState::INACCESSIBLE),
        (Status::ANA_TRANSITION, AnaState::CHANGE),
        (Status::ANA_PERSISTENT_LOSS, AnaState::PERSISTENT_LOSS),
    ] {
        let mut world = two_targets();
        let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
        refuse(&mut world.fake, NvmOpcode::WRITE, status);
        world.fake.ana = state;
        let (took, outcome) = time_of(&mut world, namespace.write(0, slice(1, 512)));
        outcome.result.unwrap();
        assert!(took < Duration::from_millis(100), "{status}: {took:?}");
        assert_eq!(writes(&world), [1, 1], "{status}");
        // And so do those after it, until the first path is reached again.
        world.write(&namespace, 0, &[2; 512]).result.unwrap();
        assert_eq!(writes(&world), [1, 2], "{status}");
        world.fake.script = Box::new(|_| Action::Normal);
        world.fake.ana = AnaState::OPTIMIZED;
        world.fake.raise(AsyncEvent::ANA_CHANGED);
        world.pass(Duration::from_millis(10));
        world.write(&namespace, 0, &[3; 512]).result.unwrap();
        assert_eq!(writes(&world), [2, 2], "{status}");
    }
}

#[test]
fn a_path_that_fails_a_range_for_good_leaves_it_to_the_other() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    let status = Status::INTERNAL_PATH_ERROR.with_dnr();
    refuse(&mut world.fake, NvmOpcode::WRITE, status);
    world.write(&namespace, 0, &[1; 512]).result.unwrap();
    assert_eq!(writes(&world), [1, 1]);
    // Each fails it once.
    refuse(&mut world.others[0], NvmOpcode::WRITE, status);
    let error = world.write(&namespace, 0, &[1; 512]).result.unwrap_err();
    assert!(error.status().is_some_and(|found| found.is(status)), "{error}");
    assert_eq!(writes(&world), [2, 2]);
    // What is wrong with the namespace itself is not tried elsewhere.
    refuse(&mut world.fake, NvmOpcode::WRITE, Status::WRITE_FAULT);
    let error = world.write(&namespace, 0, &[1; 512]).result.unwrap_err();
    assert!(error.status().is_some_and(|found| found.is(Status::WRITE_FAULT)), "{error}");
    assert_eq!(writes(&world), [3, 2]);
}

#[test]
fn ranges_wait_for_whichever_path_comes_back_first() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    cut_off(&world, 2);
    cut_off(&world, 3);
    let mut reading = namespace.read(0, slice(0, 512));
    assert!(within(&mut world, &mut reading, Duration::from_secs(5)).is_none());
    let mut writing = namespace.write(BLOCK, slice(1, 512));
    assert!(within(&mut world, &mut writing, Duration::from_secs(5)).is_none());
    world.network.heal(ip(1), ip(3));
    let (took, outcome) = time_of(&mut world, reading);
    assert!(took < Duration::from_secs(1), "{took:?}");
    let RangeOutcome { slice, result } = outcome;
    result.unwrap();
    assert!(slice.to_vec().into_iter().eq((0..512).map(pattern)));
    world.run(writing).result.unwrap();
    assert_eq!(writes(&world), [0, 1]);
}

#[test]
fn a_path_that_is_lost_for_good_fails_nothing_while_another_may_come_back() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    cut_off(&world, 2);
    world.pass(Duration::from_secs(70));
    cut_off(&world, 3);
    world.pass(Duration::from_secs(1));
    let mut writing = namespace.write(0, slice(1, 512));
    assert!(within(&mut world, &mut writing, Duration::from_secs(5)).is_none());
    world.network.heal(ip(1), ip(3));
    world.run(writing).result.unwrap();
    // With both away for long enough it fails, and says so.
    cut_off(&world, 3);
    world.pass(Duration::from_secs(70));
    let (took, outcome) = time_of(&mut world, namespace.write(0, slice(1, 512)));
    let error = outcome.result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost { .. }), "{error}");
    assert!(took < Duration::from_millis(10), "{took:?}");
    assert!(matches!(world.run(namespace.flush()).unwrap_err().kind(), ErrorKind::Lost { .. }));
}

#[test]
fn a_range_keeps_its_deadline_when_it_moves() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    swallow_writes(&mut world.fake);
    swallow_writes(&mut world.others[0]);
    let begin = world.now;
    let mut writing = namespace.write(0, slice(1, 512));
    assert!(within(&mut world, &mut writing, Duration::from_secs(25)).is_none());
    world.fake.reject = Some(Vec::new());
    world.fake.disconnect_all(world.now);
    let (_, outcome) = time_of(&mut world, writing);
    let error = outcome.result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    let took = world.now - begin;
    assert!(took > Duration::from_secs(30) && took < Duration::from_secs(33), "{took:?}");
    assert_eq!(writes(&world), [1, 1]);
}

#[test]
fn writes_of_parts_of_a_block_do_not_disturb_each_other_over_two_paths() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::RoundRobin);
    // Both targets have to show the same bytes: the second is asked for what the first has.
    let parts = [(0, 200), (200, 112), (312, 200)];
    let range =
        |(at, length): (u64, usize)| write_range(&namespace, at, slice(1 + at as u8, length));
    let mut writing = world.host.write_many(parts.map(range));
    let mut most = 0;
    loop {
        let ended = within(&mut world, &mut writing, Duration::from_nanos(1));
        let reads: usize = received(&world, NvmOpcode::READ).iter().sum();
        let ended_writes: usize = writes(&world).iter().sum();
        most = most.max(reads - ended_writes);
        if let Some(outcomes) = ended {
            assert!(outcomes.iter().all(|outcome| outcome.result.is_ok()));
            break;
        }
    }
    assert_eq!(most, 1, "one read and written back at a time");
    assert_eq!(writes(&world).iter().sum::<usize>(), 3);
}

#[test]
fn a_write_that_nobody_waits_for_stays_on_its_path() {
    let mut world = two_targets();
    let (paths, namespace) = open(&mut world, ReplicaPolicy::First);
    let writing = swallowed_write(&mut world, &namespace);
    // What its other path was may be something else soon.
    drop((writing, namespace));
    world.fake.disconnect_all(world.now);
    world.pass(Duration::from_secs(5));
    assert_eq!(writes(&world), [2, 0]);
    let opening = paths.multipath_namespace(Nsid(1), ReplicaPolicy::First);
    let namespace = world.run(opening).unwrap();
    world.fake.script = Box::new(|_| Action::Normal);
    world.fake.complete_ignored(Status::SUCCESS);
    world.write(&namespace, 0, &[2; 512]).result.unwrap();
}

#[test]
fn commands_go_over_another_path_than_the_first() {
    let mut world = two_targets();
    let (_paths, namespace) = open(&mut world, ReplicaPolicy::First);
    refuse(&mut world.fake, NvmOpcode::FLUSH, Status::ANA_INACCESSIBLE);
    world.run(namespace.flush()).unwrap();
    assert_eq!(received(&world, NvmOpcode::FLUSH), [1, 1]);
    cut_off(&world, 2);
    world.pass(Duration::from_secs(5));
    world.run(namespace.flush()).unwrap();
    assert_eq!(received(&world, NvmOpcode::FLUSH), [1, 2]);
    assert_eq!(world.run(namespace.refresh()).unwrap(), *namespace.info());
    refuse(&mut world.others[0], NvmOpcode::COMPARE, Status::COMPARE_FAILURE);
    let error = world.run(namespace.compare(0, &[0; 512])).unwrap_err();
    assert!(error.status().is_some_and(|status| status.is(Status::COMPARE_FAILURE)), "{error}");
}

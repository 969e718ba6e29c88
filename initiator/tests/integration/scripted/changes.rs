//! Namespaces that change, while connected and while not, and many of them.

use std::pin::pin;
use std::time::Duration;

use feedrail_initiator::{
    Controller, ControllerOptions, Error, ErrorKind, Grant, Namespace, RegionSlice,
};
use nvme_proto::async_event::AsyncEvent;
use nvme_proto::identify::{Cns, FileInfo, NamespaceList, Oaes};
use nvme_proto::{AdminOpcode, Nsid, NvmOpcode, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Seen};
use super::world::World;

const BLOCKS: usize = 64;

fn set_generation(world: &mut World, generation: u64) {
    let file = FileInfo::new(BLOCKS as u64 * 512, "shard").with_generation(generation);
    world.fake.namespace.set_file_info(&file);
}

/// A target that tells of changes.
fn announcing() -> World {
    let mut world = World::new(BLOCKS);
    world.fake.identify.oaes = Oaes::new().with_namespace_attribute(true);
    set_generation(&mut world, 1);
    world
}

fn open_two(world: &mut World) -> (Controller, Namespace, Namespace) {
    let (controller, first) = world.open();
    let opening = controller.namespace(Nsid(2));
    let second = world.run(opening).unwrap();
    (controller, first, second)
}

fn change(world: &mut World, list: NamespaceList) {
    set_generation(world, 2);
    *world.fake.changed = list;
    world.fake.raise(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
    world.pass(Duration::from_millis(10));
}

fn is_changed(world: &mut World, namespace: &Namespace) -> bool {
    match world.read(namespace, 0, 512, Grant::Persistent).result {
        Ok(()) => false,
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
            true
        }
    }
}

fn is_flush_or_zeroes(seen: &Seen) -> bool {
    let changing = [NvmOpcode::FLUSH.0, NvmOpcode::WRITE_ZEROES.0];
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && changing.contains(&seen.sqe.opcode)
}

fn assert_changed(result: Result<(), Error>) {
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
}

fn is_read(seen: &Seen) -> bool {
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == NvmOpcode::READ.0
}

#[test]
fn a_replacement_during_an_outage_is_an_error() {
    let mut world = World::new(BLOCKS);
    set_generation(&mut world, 1);
    let (controller, namespace) = world.open();
    assert_eq!(namespace.info().generation, Some(1));
    set_generation(&mut world, 2);
    world.fake.disconnect_all(world.now);
    let outcome = world.read(&namespace, 0, 512, Grant::Persistent);
    let error = outcome.result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
    assert!(error.to_string().contains("open it again"), "{error}");
    assert!(outcome.slice.bytes().iter().all(|&byte| byte == 0));
    let opening = controller.namespace(Nsid(1));
    let reopened = world.run(opening).unwrap();
    assert_eq!(reopened.info().generation, Some(2));
    assert!(!is_changed(&mut world, &reopened));
}

#[test]
fn a_change_under_a_connection_is_an_error() {
    let mut world = announcing();
    let (_controller, first, second) = open_two(&mut world);
    for _ in 0..3 {
        // Events that change nothing: each is waited for again.
        *world.fake.changed = NamespaceList::new([Nsid(1)]);
        world.fake.raise(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
        world.pass(Duration::from_millis(10));
        assert!(!is_changed(&mut world, &first));
    }
    change(&mut world, NamespaceList::new([Nsid(1)]));
    assert!(is_changed(&mut world, &first));
    assert!(!is_changed(&mut world, &second), "it is not in the list");
    assert_eq!(world.host.counters().connections_lost, 0);
}

#[test]
fn a_list_that_overflowed_checks_all() {
    let mut world = announcing();
    let (_controller, first, second) = open_two(&mut world);
    change(&mut world, NamespaceList::TOO_MANY);
    assert!(is_changed(&mut world, &first) && is_changed(&mut world, &second));
}

#[test]
fn commands_in_flight_during_a_change_fail() {
    let mut world = announcing();
    let (_controller, namespace) = world.open();
    world.fake.script =
        Box::new(|seen| if is_read(seen) { Action::Ignore } else { Action::Normal });
    let slice = RegionSlice::allocate(512, Grant::Persistent).unwrap();
    let mut reading = pin!(namespace.read(0, slice));
    assert!(world.run_within(reading.as_mut(), Duration::from_millis(100)).is_none());
    change(&mut world, NamespaceList::new([Nsid(1)]));
    world.fake.complete_ignored(Status::SUCCESS);
    let error = world.run(reading).result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Changed(_)), "{error}");
}

#[test]
fn a_replaced_namespace_is_neither_flushed_nor_zeroed() {
    let mut world = announcing();
    let (controller, namespace) = world.open();
    change(&mut world, NamespaceList::new([Nsid(1)]));
    for _ in 0..2 {
        let (flush, zeroes) = (namespace.flush(), namespace.write_zeroes(0, 512));
        assert_changed(world.run(flush));
        assert_changed(world.run(zeroes));
    }
    assert_eq!(world.fake.count(is_flush_or_zeroes), 0);
    let opening = controller.namespace(Nsid(1));
    let reopened = world.run(opening).unwrap();
    let (flush, zeroes) = (reopened.flush(), reopened.write_zeroes(0, 512));
    world.run(flush).unwrap();
    world.run(zeroes).unwrap();
    assert_eq!(world.fake.count(is_flush_or_zeroes), 2);
}

/// Nothing is sent to a namespace before it is known to be what it was.
#[test]
fn a_flush_waits_until_its_namespace_is_checked() {
    for changes in [false, true] {
        let mut world = announcing();
        let (_controller, first, _second) = open_two(&mut world);
        world.fake.script = Box::new(|seen| {
            let identify = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::IDENTIFY.0;
            let ignored = identify && seen.sqe.cdw10.get() & 0xFF != 1;
            if ignored { Action::Ignore } else { Action::Normal }
        });
        if changes {
            set_generation(&mut world, 2);
        }
        world.fake.disconnect_all(world.now);
        // It is connected again, and the check is in progress.
        world.pass(Duration::from_secs(1));
        let mut flush = pin!(first.flush());
        assert!(world.run_within(flush.as_mut(), Duration::from_secs(1)).is_none());
        assert_eq!(world.fake.count(is_flush_or_zeroes), 0);
        // The connection ends again, and this time the target answers.
        world.fake.script = Box::new(|_| Action::Normal);
        world.fake.disconnect_all(world.now);
        let result = world.run(flush);
        assert_eq!(world.fake.count(is_flush_or_zeroes), usize::from(!changes));
        if changes { assert_changed(result) } else { result.unwrap() }
    }
}

#[test]
fn a_flush_in_flight_during_a_change_fails() {
    let mut world = announcing();
    let (_controller, namespace) = world.open();
    world.fake.script =
        Box::new(|seen| if is_flush_or_zeroes(seen) { Action::Ignore } else { Action::Normal });
    let mut flush = pin!(namespace.flush());
    assert!(world.run_within(flush.as_mut(), Duration::from_millis(100)).is_none());
    change(&mut world, NamespaceList::new([Nsid(1)]));
    world.fake.complete_ignored(Status::SUCCESS);
    assert_changed(world.run(flush));
}

/// Commands continue without a caller that waits for them and without a handle of the namespace.
#[test]
fn a_command_outlives_its_namespace_handle() {
    let mut world = announcing();
    let (_controller, namespace) = world.open();
    drop(namespace.write_zeroes(0, 512));
    drop(namespace);
    world.pass(Duration::from_millis(10));
    assert_eq!(world.fake.count(is_flush_or_zeroes), 1);
}

#[test]
fn events_of_a_hostile_target_end_nothing() {
    let mut world = announcing();
    let (_controller, namespace) = world.open();
    for bits in [0, u32::MAX, 0x0004_0002, 0x0070_F002, 0x0004_0001] {
        world.fake.raise(AsyncEvent::from_bits(bits));
        world.pass(Duration::from_millis(10));
        assert!(!is_changed(&mut world, &namespace), "{bits:#x}");
    }
    assert_eq!(world.host.counters().connections_lost, 0);
}

#[test]
fn an_unanswered_identify_is_an_error() {
    let options = ControllerOptions::new()
        .io_timeout(Duration::from_secs(3))
        .admin_timeout(Duration::from_secs(1));
    let mut world = World::with(1, SimConfig::default(), BLOCKS, options);
    let (_controller, namespace) = world.open();
    world.fake.script = Box::new(|seen| {
        let identify = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::IDENTIFY.0;
        // Of the controller it is answered.
        let ignored = identify && seen.sqe.cdw10.get() & 0xFF != 1;
        if ignored { Action::Ignore } else { Action::Normal }
    });
    world.fake.disconnect_all(world.now);
    let began = world.now;
    let outcome = world.read(&namespace, 0, 512, Grant::Persistent);
    let error = outcome.result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost { .. } | ErrorKind::TimedOut { .. }), "{error}");
    assert!(world.now - began < Duration::from_secs(10), "{:?}", world.now - began);
    assert!(world.host.counters().connections_lost > 1);
}

#[test]
fn a_check_that_fails_is_no_change() {
    let pages = [Cns::NAMESPACE, Cns::NAMESPACE_DESCRIPTORS];
    for (page, status) in pages.into_iter().flat_map(|page| {
        let failures = [Status::ABORT_REQUESTED, Status::COMMAND_SEQUENCE_ERROR.with_dnr()];
        failures.map(|status| (page, status))
    }) {
        let mut world = announcing();
        let (_controller, namespace) = world.open();
        let mut aborts = 1;
        world.fake.script = Box::new(move |seen| {
            let identify = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::IDENTIFY.0;
            if identify && seen.sqe.cdw10.get() & 0xFF == u32::from(page.0) && aborts > 0 {
                aborts -= 1;
                return Action::Fail(status);
            }
            Action::Normal
        });
        world.fake.disconnect_all(world.now);
        assert!(!is_changed(&mut world, &namespace), "{page:?} {status:?}");
        assert_eq!(world.host.counters().connections_lost, 2);
    }
}

#[test]
fn many_namespaces_do_not_delay_a_reconnect() {
    const COUNT: u32 = 300;
    let config = SimConfig { latency: Duration::from_millis(2), ..Default::default() };
    // Each of them takes two round trips.
    let options = ControllerOptions::new()
        .connect_timeout(Duration::from_millis(600))
        .io_timeout(Duration::from_secs(5));
    let mut world = World::with(1, config, BLOCKS, options);
    let controller = world.connect().unwrap();
    let opening: Vec<_> = (1..=COUNT).map(|nsid| controller.namespace(Nsid(nsid))).collect();
    let all: Vec<Namespace> =
        opening.into_iter().map(|opening| world.run(opening).unwrap()).collect();
    let before = world.fake.count(|seen| seen.sqe.opcode == AdminOpcode::IDENTIFY.0);
    world.fake.disconnect_all(world.now);
    for namespace in [&all[0], &all[COUNT as usize - 1]] {
        assert!(!is_changed(&mut world, namespace));
    }
    world.pass(Duration::from_secs(2));
    let identified = world.fake.count(|seen| seen.sqe.opcode == AdminOpcode::IDENTIFY.0) - before;
    assert!(identified > 2 * COUNT as usize, "{identified}");
    assert_eq!(world.host.counters().reconnects, 1);
}

//! Paths to one namespace, and how each of two targets says that it reaches it.

use std::pin::pin;
use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, ErrorKind, Grant, Namespace, RegionSlice, ReplicaPolicy,
};
use nvme_proto::Status;
use nvme_proto::async_event::AsyncEvent;
use nvme_proto::identify::{Cmic, Oaes};
use nvme_proto::log::AnaState;
use rdma::sim::SimConfig;

use super::fake::{Action, Fake};
use super::replicas::{BLOCKS, ROWS, Reading, is_read, patient_world, reads};
use super::world::World;

fn report_ana(fake: &mut Fake) {
    fake.identify.cmic = Cmic::new().with_ana(true);
    fake.identify.oaes = Oaes::new().with_ana_change(true);
    fake.namespace.anagrpid.set(1);
}

fn reach(fake: &mut Fake, state: AnaState) {
    fake.ana = state;
    fake.raise(AsyncEvent::ANA_CHANGED);
}

/// Two targets with one namespace, which report its access state.
fn two_paths() -> World {
    let mut world = patient_world();
    report_ana(&mut world.fake);
    world.others.iter_mut().for_each(report_ana);
    world
}

/// One target, and a namespace of it.
fn one_path() -> (World, Namespace) {
    let options = ControllerOptions::new().io_timeout(Duration::from_secs(5));
    let mut world = World::with(1, SimConfig::default(), BLOCKS, options);
    report_ana(&mut world.fake);
    let (_, namespace) = world.open();
    (world, namespace)
}

fn refuse_reads(fake: &mut Fake, status: Status) {
    fake.script = Box::new(move |seen| match is_read(seen) {
        true => Action::Fail(status),
        false => Action::Normal,
    });
}

#[test]
fn ranges_take_the_paths_that_are_reached_best() {
    let mut world = two_paths();
    world.others[0].ana = AnaState::NON_OPTIMIZED;
    let mut reading = Reading::of(&mut world, ReplicaPolicy::RoundRobin);
    reading.ends_well(&mut world);
    let mut seen = [0; 2];
    let mut since = |world: &World| {
        let now = [reads(&world.fake), reads(&world.others[0])];
        let new = [now[0] - seen[0], now[1] - seen[1]];
        seen = now;
        new.map(|reads| reads as u64)
    };
    assert_eq!(since(&world), [ROWS, 0]);
    let steps = [
        (AnaState::OPTIMIZED, AnaState::OPTIMIZED, [ROWS / 2, ROWS / 2]),
        (AnaState::NON_OPTIMIZED, AnaState::OPTIMIZED, [0, ROWS]),
        (AnaState::NON_OPTIMIZED, AnaState::NON_OPTIMIZED, [ROWS / 2, ROWS / 2]),
        (AnaState::NON_OPTIMIZED, AnaState::INACCESSIBLE, [ROWS, 0]),
        (AnaState::CHANGE, AnaState::OPTIMIZED, [0, ROWS]),
        (AnaState::OPTIMIZED, AnaState::PERSISTENT_LOSS, [ROWS, 0]),
    ];
    for (one, other, expected) in steps {
        reach(&mut world.fake, one);
        reach(&mut world.others[0], other);
        world.pass(Duration::from_millis(10));
        reading.again(&world);
        reading.ends_well(&mut world);
        assert_eq!(since(&world), expected, "{one}, {other}");
    }
}

#[test]
fn refused_ranges_take_another_path_at_once() {
    for (status, state) in [
        (Status::ANA_INACCESSIBLE, AnaState::INACCESSIBLE),
        (Status::ANA_TRANSITION, AnaState::CHANGE),
        (Status::ANA_PERSISTENT_LOSS, AnaState::PERSISTENT_LOSS),
    ] {
        let mut world = two_paths();
        let mut reading = Reading::of(&mut world, ReplicaPolicy::First);
        while reads(&world.fake) < 50 {
            assert!(world.step());
        }
        refuse_reads(&mut world.fake, status);
        world.fake.ana = state;
        reading.ends_well(&mut world);
        assert!(reading.attempts().iter().any(|&attempts| attempts > 1), "{status}");
        // Nothing more is asked of it until it is reached again.
        let before = reads(&world.fake);
        reading.again(&world);
        reading.ends_well(&mut world);
        assert_eq!(reads(&world.fake), before, "{status}");
        world.fake.script = Box::new(|_| Action::Normal);
        reach(&mut world.fake, AnaState::OPTIMIZED);
        world.pass(Duration::from_millis(10));
        reading.again(&world);
        reading.ends_well(&mut world);
        assert_eq!(reads(&world.fake), before + ROWS as usize, "{status}");
    }
}

#[test]
fn ranges_wait_while_no_path_serves() {
    let mut world = two_paths();
    let mut reading = Reading::of(&mut world, ReplicaPolicy::RoundRobin);
    reading.ends_well(&mut world);
    reach(&mut world.fake, AnaState::INACCESSIBLE);
    reach(&mut world.others[0], AnaState::CHANGE);
    world.pass(Duration::from_millis(10));
    let before = reads(&world.fake) + reads(&world.others[0]);
    reading.again(&world);
    world.pass(Duration::from_secs(5));
    assert_eq!(reading.done(), 0);
    assert_eq!(reads(&world.fake) + reads(&world.others[0]), before);
    reach(&mut world.others[0], AnaState::NON_OPTIMIZED);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.others[0]), ROWS as usize / 2 + ROWS as usize);

    // Not for ever: as long as they may take over one path, and then over the other.
    reach(&mut world.others[0], AnaState::INACCESSIBLE);
    world.pass(Duration::from_millis(10));
    reading.again(&world);
    world.pass(Duration::from_secs(29));
    assert_eq!(reading.done(), 0);
    world.pass(Duration::from_secs(32));
    let error = reading.error(0).expect("its time is over");
    assert!(error.status().is_some_and(|status| status.is(Status::ANA_INACCESSIBLE)), "{error}");
    assert_eq!(reading.done(), ROWS as usize);
}

#[test]
fn a_lost_event_is_made_up_for() {
    for status in [Status::ANA_TRANSITION, Status::ANA_INACCESSIBLE] {
        let (mut world, namespace) = one_path();
        refuse_reads(&mut world.fake, status);
        world.fake.ana = AnaState::INACCESSIBLE;
        let slice = RegionSlice::allocate(512, Grant::Persistent).unwrap();
        let mut reading = pin!(namespace.read(0, slice));
        assert!(world.run_within(reading.as_mut(), Duration::from_secs(3)).is_none());
        assert_eq!(reads(&world.fake), 1, "it waits instead of asking");
        world.fake.script = Box::new(|_| Action::Normal);
        world.fake.ana = AnaState::OPTIMIZED;
        let ended = world.run_within(reading, Duration::from_millis(1500)).expect("it is noticed");
        ended.result.unwrap();
    }
}

#[test]
fn the_only_path_ends_ranges_with_its_state() {
    let (mut world, namespace) = one_path();
    refuse_reads(&mut world.fake, Status::ANA_INACCESSIBLE);
    world.fake.ana = AnaState::INACCESSIBLE;
    let begin = world.now;
    let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
    let is_it = |status: &Status| status.is(Status::ANA_INACCESSIBLE);
    assert!(matches!(error.kind(), ErrorKind::Status(status) if is_it(status)), "{error}");
    assert!(world.now - begin >= Duration::from_secs(5));

    let (mut world, namespace) = one_path();
    refuse_reads(&mut world.fake, Status::ANA_PERSISTENT_LOSS);
    world.fake.ana = AnaState::PERSISTENT_LOSS;
    for _ in 0..2 {
        let begin = world.now;
        let error = world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap_err();
        assert!(error.status().unwrap().is(Status::ANA_PERSISTENT_LOSS), "{error}");
        assert!(world.now - begin < Duration::from_secs(1), "there is nothing to wait for");
    }
}

#[test]
fn a_target_without_groups_is_asked_nothing() {
    let (mut world, namespace) = {
        let mut world = World::new(BLOCKS);
        let (_, namespace) = world.open();
        (world, namespace)
    };
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    let asks = |fake: &Fake| {
        fake.count(|seen| {
            let is_log = seen.sqe.opcode == nvme_proto::AdminOpcode::GET_LOG_PAGE.0;
            seen.qid.is_admin() && !seen.sqe.is_fabrics() && is_log
        })
    };
    assert_eq!(asks(&world.fake), 0);
}

//! A target that has yet to end an earlier controller of the host refuses Connect for a while.

use std::time::Duration;

use feedrail_initiator::{ControllerOptions, ErrorKind, Nsid};
use nvme_proto::{FabricsType, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Seen};
use super::world::World;

const TIMEOUT: Duration = Duration::from_secs(3);

fn is_connect(seen: &Seen) -> bool {
    seen.sqe.is_fabrics() && seen.sqe.fabrics_type() == FabricsType::CONNECT
}

fn world() -> World {
    let options = ControllerOptions::new().connect_timeout(TIMEOUT);
    World::with(1, SimConfig::default(), 64, options)
}

/// Refuses the first Connects of a queue with a status.
fn refuse(world: &mut World, mut times: usize, of_admin: bool, status: Status) {
    world.fake.script = Box::new(move |seen| {
        let refused = is_connect(seen) && seen.qid.is_admin() == of_admin && times > 0;
        times -= usize::from(refused);
        if refused { Action::Fail(status) } else { Action::Normal }
    });
}

#[test]
fn a_busy_target_is_asked_again() {
    for of_admin in [true, false] {
        for times in [1, 2, 10] {
            let mut world = world();
            refuse(&mut world, times, of_admin, Status::CONNECT_CONTROLLER_BUSY);
            let controller = world.connect().unwrap();
            let opening = controller.namespace(Nsid(1));
            world.run(opening).unwrap();
            let connects = world.fake.count(|seen| is_connect(seen) && seen.qid.is_admin());
            assert_eq!(connects, times + 1);
            assert_eq!(world.host.counters().reconnects, 0);
        }
    }
}

#[test]
fn a_target_that_stays_busy_is_the_error_after_the_timeout() {
    let mut world = world();
    refuse(&mut world, usize::MAX, true, Status::CONNECT_CONTROLLER_BUSY);
    let start = world.now;
    let error = world.connect().unwrap_err();
    let took = world.now - start;
    let busy = Status::CONNECT_CONTROLLER_BUSY;
    let is_busy =
        matches!(error.kind(), ErrorKind::ConnectRefused { status, .. } if status.is(busy));
    assert!(is_busy, "{error}");
    assert!(took > TIMEOUT - Duration::from_millis(250) && took <= TIMEOUT, "{took:?}");
    assert!((10..40).contains(&world.fake.count(is_connect)));
}

#[test]
fn an_attempt_that_the_timeout_ends_has_the_refusal_as_its_error() {
    let mut world = world();
    let mut connects = 0;
    world.fake.script = Box::new(move |seen| {
        connects += usize::from(is_connect(seen));
        match connects {
            1 => Action::Fail(Status::CONNECT_CONTROLLER_BUSY),
            _ => Action::Ignore,
        }
    });
    let start = world.now;
    let error = world.connect().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectRefused { .. }), "{error}");
    assert!(world.now - start <= TIMEOUT + Duration::from_millis(1));
}

#[test]
fn other_refusals_are_told_at_once() {
    for status in [
        Status::CONNECT_CONTROLLER_BUSY.with_dnr(),
        Status::CONNECT_INVALID_HOST,
        Status::CONNECT_INVALID_PARAMETERS,
    ] {
        let mut world = world();
        refuse(&mut world, usize::MAX, true, status);
        let error = world.connect().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::ConnectRefused { .. }), "{error}");
        assert_eq!(world.fake.count(is_connect), 1, "{status:?}");
    }
}

#[test]
fn a_connect_that_is_given_up_is_not_repeated() {
    let mut world = world();
    refuse(&mut world, usize::MAX, true, Status::CONNECT_CONTROLLER_BUSY);
    let connecting = world.host.connect(World::target());
    world.pass(Duration::from_millis(500));
    drop(connecting);
    world.pass(Duration::from_millis(500));
    let before = world.fake.count(is_connect);
    world.pass(TIMEOUT);
    assert_eq!(world.fake.count(is_connect), before);
}

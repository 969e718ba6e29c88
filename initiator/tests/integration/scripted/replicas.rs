//! Shards of several targets.

use std::net::SocketAddr;
use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, Entry, Error, Grant, Namespace, Nsid, Outcome, Region, ReplicaPolicy,
    Shards, Submit, SubsystemAddress, Ticket,
};
use nvme_proto::{AdminOpcode, NvmOpcode, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Fake, Seen, ip, pattern};
use super::world::World;

pub(crate) const BLOCKS: usize = 1024;
pub(crate) const ROWS: u64 = 300;

pub(crate) fn is_read(seen: &Seen) -> bool {
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == NvmOpcode::READ.0
}

pub(crate) fn reads(fake: &Fake) -> usize {
    fake.seen.iter().filter(|seen| is_read(seen)).count()
}

fn plan() -> Vec<Entry> {
    (0..ROWS).map(|i| Entry { shard: 0, length: 1000, offset: i * 1009, dst: i * 1000 }).collect()
}

/// Two targets with the same namespace, and options for hosts that have a choice.
pub(crate) fn world() -> World {
    let options = ControllerOptions::new()
        .loss_timeout(Duration::from_millis(300))
        .io_timeout(Duration::from_millis(300))
        .abort_timeout(Duration::from_millis(100));
    let mut world = World::with(1, SimConfig::default(), BLOCKS, options);
    let other = Fake::new(&world.network, SocketAddr::new(ip(3), 4420), BLOCKS);
    world.others.push(other);
    world
}

/// Opens the namespace over both targets.
fn open(world: &mut World) -> Vec<Namespace> {
    let other = SubsystemAddress { address: SocketAddr::new(ip(3), 4420), ..World::target() };
    [World::target(), other]
        .map(|target| {
            let connecting = world.host.connect(target);
            let controller = world.run(connecting).unwrap();
            let opening = controller.namespace(Nsid(1));
            world.run(opening).unwrap()
        })
        .into()
}

pub(crate) struct Reading {
    shards: Shards,
    region: Region,
    ticket: Ticket,
}

impl Reading {
    pub(crate) fn begin(world: &mut World) -> Self {
        let (shards, unlike) = Shards::replicated([open(world)]).unwrap();
        assert!(unlike.is_empty());
        let region = Region::allocate(ROWS as usize * 1000, Grant::Persistent).unwrap();
        let ticket = world.host.submit(&shards, &plan(), &region, Submit::default()).unwrap();
        Self { shards, region, ticket }
    }

    /// Shards with both targets as paths, which no byte of the namespaces tells apart.
    pub(crate) fn of(world: &mut World, policy: ReplicaPolicy) -> Self {
        let shards = Shards::with_replicas(policy, [open(world)]).unwrap();
        let region = Region::allocate(ROWS as usize * 1000, Grant::Persistent).unwrap();
        let ticket = world.host.submit(&shards, &plan(), &region, Submit::default()).unwrap();
        Self { shards, region, ticket }
    }

    pub(crate) fn done(&self) -> usize {
        self.ticket.progress().done
    }

    pub(crate) fn error(&self, row: usize) -> Option<Error> {
        self.ticket.error(row)
    }

    /// How often each row was begun.
    pub(crate) fn attempts(&self) -> Vec<u8> {
        self.ticket.outcomes().map(|outcome| outcome.attempts).collect()
    }

    pub(crate) fn again(&mut self, world: &World) {
        let submitted = world.host.submit(&self.shards, &plan(), &self.region, Submit::default());
        self.ticket = submitted.unwrap();
    }

    /// All rows are there within a second.
    #[track_caller]
    pub(crate) fn ends_well(&self, world: &mut World) {
        let begin = world.now;
        world.run(self.ticket.finished(ROWS as usize));
        assert_eq!(self.ticket.progress().failed, 0);
        assert!(world.now - begin < Duration::from_secs(1));
        let mut bytes = [0; 1000];
        for entry in plan() {
            self.region.copy_out(entry.dst as usize, &mut bytes).unwrap();
            let expected = (entry.offset as usize..).map(pattern);
            assert!(bytes.iter().copied().eq(expected.take(1000)), "{entry:?}");
        }
    }
}

#[test]
fn ranges_are_spread_over_replicas() {
    let mut world = world();
    let reading = Reading::begin(&mut world);
    reading.ends_well(&mut world);
    assert_eq!((reads(&world.fake), reads(&world.others[0])), (150, 150));
}

#[test]
fn what_a_lost_target_did_not_give_is_read_elsewhere() {
    let mut world = world();
    let mut reading = Reading::begin(&mut world);
    while reads(&world.fake) < 50 {
        assert!(world.step());
    }
    world.fake.reject = Some(Vec::new());
    world.fake.disconnect_all(world.now);
    reading.ends_well(&mut world);
    // Nothing is asked of it from now on.
    let before = reads(&world.fake);
    reading.again(&world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.fake), before);
    // It is used again when it is back and has served one range.
    world.fake.reject = None;
    world.pass(Duration::from_secs(5));
    reading.again(&world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.fake), before + 1);
    reading.again(&world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.fake), before + 151);
}

/// Hosts that have a choice, and would wait for a target for a minute.
pub(crate) fn patient_world() -> World {
    let options = ControllerOptions::new().silence_timeout(Duration::from_millis(500));
    let mut world = World::with(1, SimConfig::default(), BLOCKS, options);
    world.others.push(Fake::new(&world.network, SocketAddr::new(ip(3), 4420), BLOCKS));
    world
}

#[test]
fn ranges_of_a_lost_target_do_not_wait_for_it() {
    let mut world = patient_world();
    let reading = Reading::begin(&mut world);
    while reads(&world.fake) < 50 {
        assert!(world.step());
    }
    world.fake.reject = Some(Vec::new());
    world.fake.disconnect_all(world.now);
    reading.ends_well(&mut world);
}

#[test]
fn ranges_of_a_target_that_answers_nothing_are_read_elsewhere() {
    let mut world = patient_world();
    world.fake.script = Box::new(|seen| match is_read(seen) || is_keep_alive(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
    let reading = Reading::begin(&mut world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.others[0]), ROWS as usize);
}

fn is_keep_alive(seen: &Seen) -> bool {
    seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::KEEP_ALIVE.0
}

#[test]
fn ranges_go_to_the_target_that_comes_back_first() {
    let mut world = patient_world();
    let mut reading = Reading::begin(&mut world);
    reading.ends_well(&mut world);
    let now = world.now;
    world.fake.reject = Some(Vec::new());
    world.others[0].reject = Some(Vec::new());
    world.fake.disconnect_all(now);
    world.others[0].disconnect_all(now);
    world.pass(Duration::from_secs(5));
    reading.again(&world);
    world.pass(Duration::from_secs(1));
    assert_eq!(reading.ticket.progress().done, 0);
    let before = reads(&world.others[0]);
    world.others[0].reject = None;
    world.run(reading.ticket.finished(ROWS as usize));
    assert_eq!(reading.ticket.progress().failed, 0);
    assert_eq!(reads(&world.others[0]), before + ROWS as usize);
}

#[test]
fn a_target_that_fails_at_everything_is_left_alone() {
    let mut world = world();
    world.fake.script = Box::new(|seen| match is_read(seen) {
        true => Action::Fail(Status::INTERNAL_ERROR),
        false => Action::Normal,
    });
    let mut reading = Reading::begin(&mut world);
    reading.ends_well(&mut world);
    let before = reads(&world.fake);
    reading.again(&world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.fake), before);
    for pause in [500, 1000, 2000] {
        world.pass(Duration::from_millis(pause));
        // The host learns what time it is.
        world.step();
        reading.again(&world);
        reading.ends_well(&mut world);
    }
    assert_eq!(reads(&world.fake), before + 3);
    world.fake.script = Box::new(|_| Action::Normal);
    world.pass(Duration::from_secs(4));
    world.step();
    reading.again(&world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.fake), before + 4);
    reading.again(&world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.fake), before + 4 + 150);
}

#[test]
fn a_replica_that_changed_is_taken_out() {
    let mut world = world();
    let mut reading = Reading::begin(&mut world);
    reading.ends_well(&mut world);
    assert_eq!(reading.shards.changed_count(), 0);
    world.fake.uuid = [8; 16];
    let now = world.now;
    world.fake.disconnect_all(now);
    world.pass(Duration::from_secs(5));
    let before = reads(&world.fake);
    for _ in 0..3 {
        reading.again(&world);
        reading.ends_well(&mut world);
    }
    assert_eq!(reads(&world.fake), before);
    let changed = reading.shards.changed();
    assert_eq!((changed.len(), changed[0].shard, reading.shards.changed_count()), (1, 0, 1));
    assert_eq!(changed[0].namespace.target().address, World::target().address);
    assert!(changed[0].error.to_string().contains("UUID"), "{}", changed[0].error);
}

#[test]
fn the_first_replica_is_read_where_that_is_asked_for() {
    let mut world = world();
    world.others[0].uuid = [8; 16];
    let replicas = open(&mut world);
    // The caller knows better than the UUIDs.
    let shards = Shards::with_replicas(ReplicaPolicy::First, [replicas]).unwrap();
    let region = Region::allocate(ROWS as usize * 1000, Grant::Persistent).unwrap();
    let ticket = world.host.submit(&shards, &plan(), &region, Submit::default()).unwrap();
    let reading = Reading { shards, region, ticket };
    reading.ends_well(&mut world);
    assert_eq!((reads(&world.fake), reads(&world.others[0])), (ROWS as usize, 0));
}

#[test]
fn a_plan_for_a_lost_target_has_it_tried_at_once() {
    let mut world = world();
    let (_, namespace) = world.open();
    let shards = Shards::new([namespace]).unwrap();
    let region = Region::allocate(ROWS as usize * 1000, Grant::Persistent).unwrap();
    world.fake.reject = Some(Vec::new());
    let now = world.now;
    world.fake.disconnect_all(now);
    world.pass(Duration::from_secs(20));
    let ticket = world.host.submit(&shards, &plan(), &region, Submit::default()).unwrap();
    let begin = world.now;
    world.run(ticket.finished(ROWS as usize));
    assert!(ticket.outcomes().all(|outcome| outcome.status == Outcome::LOST));
    assert!(world.now - begin < Duration::from_millis(200), "{:?}", world.now - begin);
    world.fake.reject = None;
    let ticket = world.host.submit(&shards, &plan(), &region, Submit::default()).unwrap();
    let reading = Reading { shards, region, ticket };
    let begin = world.now;
    reading.ends_well(&mut world);
    assert!(world.now - begin < Duration::from_millis(200), "{:?}", world.now - begin);
}

#[test]
fn what_a_silent_target_does_not_give_is_read_elsewhere() {
    let mut world = world();
    world.fake.script = Box::new(|seen| {
        let is_abort = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::ABORT.0;
        if is_read(seen) || is_abort { Action::Ignore } else { Action::Normal }
    });
    let reading = Reading::begin(&mut world);
    reading.ends_well(&mut world);
    assert!(reading.ticket.outcomes().filter(|outcome| outcome.attempts > 1).count() >= 100);
}

#[test]
fn what_a_target_fails_at_is_read_elsewhere() {
    let mut world = world();
    world.fake.script = Box::new(|seen| match is_read(seen) {
        true => Action::Fail(Status::INTERNAL_ERROR),
        false => Action::Normal,
    });
    let reading = Reading::begin(&mut world);
    reading.ends_well(&mut world);
    assert_eq!(reads(&world.others[0]), ROWS as usize);
}

#[test]
fn a_range_is_asked_of_each_replica_once() {
    let mut world = world();
    let failing = |seen: &Seen| match is_read(seen) {
        true => Action::Fail(Status::INTERNAL_ERROR),
        false => Action::Normal,
    };
    world.fake.script = Box::new(failing);
    world.others[0].script = Box::new(failing);
    let reading = Reading::begin(&mut world);
    world.run(reading.ticket.finished(ROWS as usize));
    let statuses = reading.ticket.outcomes().map(|outcome| outcome.status);
    assert!(statuses.into_iter().all(|status| status == Status::INTERNAL_ERROR.to_bits()));
    assert_eq!((reads(&world.fake), reads(&world.others[0])), (300, 300));
}

#[test]
fn a_plan_without_any_target_fails() {
    let mut world = world();
    let reading = Reading::begin(&mut world);
    world.fake.reject = Some(Vec::new());
    world.others[0].reject = Some(Vec::new());
    let now = world.now;
    world.fake.disconnect_all(now);
    world.others[0].disconnect_all(now);
    world.run(reading.ticket.finished(ROWS as usize));
    assert!(reading.ticket.outcomes().all(|outcome| outcome.status == Outcome::LOST));
    assert!(!reading.region.is_in_flight());
}

#[test]
fn a_cancelled_plan_is_read_nowhere_else() {
    let mut world = world();
    let reading = Reading::begin(&mut world);
    while reads(&world.fake) < 10 {
        assert!(world.step());
    }
    reading.ticket.cancel();
    world.fake.reject = Some(Vec::new());
    let now = world.now;
    world.fake.disconnect_all(now);
    let before = reads(&world.others[0]);
    world.run(reading.ticket.finished(ROWS as usize));
    let cancelled = |outcome: Outcome| outcome.is_ok() || outcome.status == Outcome::CANCELLED;
    assert!(reading.ticket.outcomes().all(cancelled));
    // Those that were on their way.
    assert!(reads(&world.others[0]) <= before + 127);
}

#[test]
fn a_replica_with_other_bytes_is_left_out() {
    let mut world = world();
    world.others[0].uuid = [8; 16];
    let replicas = open(&mut world);
    let (shards, unlike) = Shards::replicated([replicas]).unwrap();
    assert_eq!((unlike.len(), unlike[0].shard, unlike[0].difference), (1, 0, "UUID"));
    assert_eq!(unlike[0].namespace.target().address.ip(), ip(3));
    let region = Region::allocate(ROWS as usize * 1000, Grant::Persistent).unwrap();
    let ticket = world.host.submit(&shards, &plan(), &region, Submit::default()).unwrap();
    world.run(ticket.finished(ROWS as usize));
    assert_eq!((ticket.progress().failed, reads(&world.others[0])), (0, 0));
}

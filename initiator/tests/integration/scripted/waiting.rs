//! Ranges that wait: for their turn, for a connection, or for a caller that has gone.

use std::time::Duration;

use feedrail_initiator::{
    BatchOptions, Class, ControllerOptions, ErrorKind, Grant, Namespace, RangeOutcome, ReadRange,
    RegionSlice,
};
use nvme_proto::IntoBytes;
use nvme_proto::NvmOpcode;
use nvme_proto::rdma_cm::{Reject, RejectStatus};
use rdma::sim::SimConfig;

use super::fake::{Action, Seen};
use super::world::{World, read_range};

const MILLISECOND: Duration = Duration::from_millis(1);

fn is_read(seen: &Seen) -> bool {
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == NvmOpcode::READ.0
}

/// A target that takes one command at a time, and some milliseconds for each.
fn slow(io_timeout: Duration) -> World {
    let config = SimConfig { latency: 2 * MILLISECOND, ..Default::default() };
    let options = ControllerOptions::new().io_timeout(io_timeout);
    let mut world = World::with(1, config, 1024, options);
    world.fake.identify.maxcmd.set(1);
    world
}

/// One range for each of `count` blocks.
fn blocks(namespace: &Namespace, count: usize) -> Vec<ReadRange> {
    let memory = RegionSlice::allocate(count * 512, Grant::Persistent).unwrap();
    let blocks = memory.chunks(512).enumerate();
    blocks.map(|(i, into)| read_range(namespace, i as u64 % 1024 * 512, into)).collect()
}

fn failed(outcomes: &[RangeOutcome]) -> usize {
    outcomes.iter().filter(|outcome| outcome.result.is_err()).count()
}

#[test]
fn waiting_for_its_turn_is_no_timeout() {
    let mut world = slow(300 * MILLISECOND);
    let (_controller, namespace) = world.open();
    let began = world.now;
    let reading = world.host.read_many(blocks(&namespace, 400));
    assert_eq!(failed(&world.run(reading)), 0);
    assert!(world.now - began > 4 * 300 * MILLISECOND, "it took long enough to tell");
    assert_eq!(world.host.counters().timeouts, 0);
}

#[test]
fn a_long_range_with_progress_does_not_expire() {
    let mut world = slow(100 * MILLISECOND);
    world.fake.identify.mdts = 1;
    let (_controller, namespace) = world.open();
    let began = world.now;
    world.read(&namespace, 0, 512 << 10, Grant::Persistent).result.unwrap();
    assert!(world.now - began > 200 * MILLISECOND, "it took long enough to tell");
}

#[test]
fn progress_that_is_undone_each_time_is_none() {
    let mut world = slow(300 * MILLISECOND);
    world.fake.identify.mdts = 1;
    let (_controller, namespace) = world.open();
    let mut reads = 0;
    world.fake.script = Box::new(move |seen| {
        reads += usize::from(is_read(seen));
        if is_read(seen) && reads % 3 == 0 { Action::Disconnect } else { Action::Normal }
    });
    let outcome = world.read(&namespace, 0, 64 << 10, Grant::Persistent);
    let error = outcome.result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut { .. } | ErrorKind::Lost { .. }), "{error}");
}

#[test]
fn a_batch_has_a_deadline_of_its_own() {
    let mut world = slow(300 * MILLISECOND);
    let (_controller, namespace) = world.open();
    let began = world.now;
    let options = BatchOptions::new().deadline(100 * MILLISECOND);
    let reading = world.host.read_many_with(options, blocks(&namespace, 400));
    let outcomes = world.run(reading);
    let ended = outcomes.iter().position(|outcome| outcome.result.is_err()).unwrap();
    assert!(ended > 5 && failed(&outcomes) >= 400 - ended - 1, "{ended}");
    let error = outcomes[399].result.as_ref().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut { after } if *after == 100 * MILLISECOND));
    assert!(world.now - began < 300 * MILLISECOND);
}

#[test]
fn many_ranges_without_a_target_fail_together() {
    let mut world = slow(300 * MILLISECOND);
    let (_controller, namespace) = world.open();
    world.fake.reject = Some(Reject::new(RejectStatus::NO_RESOURCES).as_bytes().to_vec());
    world.fake.disconnect_all(world.now);
    world.pass(10 * MILLISECOND);
    let began = world.now;
    // In seconds, not minutes, as long as one range costs the same however many there are.
    let reading = world.host.read_many(blocks(&namespace, 100_000));
    assert_eq!(failed(&world.run(reading)), 100_000);
    assert!((300..1000).contains(&(world.now - began).as_millis()));
}

#[test]
fn reads_that_nobody_waits_for_are_not_sent() {
    let mut world = slow(Duration::from_secs(30));
    let (_controller, namespace) = world.open();
    let reading = world.host.read_many(blocks(&namespace, 500));
    world.pass(50 * MILLISECOND);
    drop(reading);
    let sent = world.fake.count(is_read);
    let began = world.now;
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    assert!(world.now - began < 50 * MILLISECOND);
    world.pass(Duration::from_secs(5));
    assert!(world.fake.count(is_read) <= sent + 2);
}

#[test]
fn writes_go_on_though_nobody_waits() {
    let mut world = slow(Duration::from_secs(30));
    let (_controller, namespace) = world.open();
    drop(namespace.write(512, RegionSlice::from_vec(vec![9; 4096], Grant::Persistent)));
    world.pass(Duration::from_secs(1));
    assert!(world.fake.disk()[512..][..4096] == [9; 4096]);
}

#[test]
fn background_gives_way() {
    let config = SimConfig { latency: 2 * MILLISECOND, ..Default::default() };
    let mut world = World::with(1, config, 1024, ControllerOptions::default());
    world.fake.identify.maxcmd.set(8);
    let (_controller, namespace) = world.open();
    let options = BatchOptions::new().class(Class::Background);
    let batch = world.host.read_many_with(options, blocks(&namespace, 500));
    world.pass(10 * MILLISECOND);
    let before = world.fake.count(is_read);
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    // Half of the queue is in flight at most, twice at most while it is answered.
    let meanwhile = world.fake.count(is_read) - before;
    assert!((1..=9).contains(&meanwhile), "{meanwhile}");
    assert_eq!(failed(&world.run(batch)), 0);
}

#[test]
fn a_foreground_batch_overtakes_the_background() {
    let mut world = slow(Duration::from_secs(30));
    let (_controller, namespace) = world.open();
    let options = BatchOptions::new().class(Class::Background);
    let background = world.host.read_many_with(options, blocks(&namespace, 100));
    let foreground = world.host.read_many(blocks(&namespace, 100));
    assert_eq!(failed(&world.run(foreground)), 0);
    assert!(world.host.counters().ranges <= 102);
    assert_eq!(failed(&world.run(background)), 0);
}

#[test]
fn a_ring_keeps_the_connection_of_its_ranges() {
    let mut world = World::new(64);
    let (controller, namespace) = world.open();
    let mut ring = world.host.ring(4);
    for token in 7..9 {
        let slice = RegionSlice::allocate(512, Grant::Persistent).unwrap();
        ring.read(&namespace, 512, slice, token).unwrap();
    }
    ring.submit();
    drop((controller, namespace));
    let mut done = Vec::new();
    for _ in 0..1000 {
        world.step();
        ring.reap(&mut done);
    }
    let mut tokens: Vec<u64> = done.iter().map(|completion| completion.token).collect();
    tokens.sort_unstable();
    assert_eq!((tokens, ring.in_flight()), (vec![7, 8], 0));
    assert!(done.iter().all(|completion| completion.result.is_ok()));
}

#[test]
fn a_full_ring_gives_the_memory_back() {
    let world = World::new(64);
    let mut world = world;
    let (_controller, namespace) = world.open();
    let slice = || RegionSlice::allocate(512, Grant::Persistent).unwrap();
    let mut ring = world.host.ring(40);
    for token in 0..40 {
        ring.read(&namespace, token * 512, slice(), token).unwrap();
    }
    assert_eq!(ring.read(&namespace, 0, slice(), 40).unwrap_err().0.len(), 512);
    world.pass(Duration::from_secs(1));
    drop(ring.read(&namespace, 0, slice(), 40).unwrap_err());
    assert_eq!(ring.reap(&mut Vec::new()), 40);
    ring.read(&namespace, 0, slice(), 40).unwrap();
}

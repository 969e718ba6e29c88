//! Plans: many ranges into one region.
#![expect(unsafe_code, reason = "a region of foreign memory")]

use std::future::Future;
use std::pin::pin;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use feedrail_initiator::{
    Class, ControllerOptions, Entry, ErrorKind, Grant, Outcome, PlanError, Region, Shards, Submit,
    Ticket,
};
use nvme_proto::{AdminOpcode, NvmOpcode, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Seen, pattern};
use super::world::World;

fn expected(offset: usize, length: usize) -> Vec<u8> {
    (offset..offset + length).map(pattern).collect()
}

fn entry(offset: u64, length: u32, dst: u64) -> Entry {
    Entry { shard: 0, length, offset, dst }
}

/// `count` rows of `length` bytes, one behind the other in the region.
fn rows(count: u64, length: u32) -> Vec<Entry> {
    (0..count).map(|i| entry(i * 1009, length, i * u64::from(length))).collect()
}

fn bytes(region: &Region, entry: &Entry) -> Vec<u8> {
    let mut bytes = vec![0; entry.length as usize];
    region.copy_out(entry.dst as usize, &mut bytes).unwrap();
    bytes
}

fn open(world: &mut World) -> Shards {
    Shards::new([world.open().1]).unwrap()
}

impl World {
    fn submit(&self, shards: &Shards, plan: &[Entry], into: &Region) -> Ticket {
        self.host.submit(shards, plan, into, Submit::default()).unwrap()
    }

    fn finish(&mut self, ticket: &Ticket) {
        self.run(ticket.finished(ticket.len()));
        assert!(ticket.is_done());
    }

    /// Runs until the target has seen this many reads.
    fn run_until_seen(&mut self, reads: usize) {
        while self.reads_seen() < reads {
            assert!(self.step(), "no more reads come");
        }
    }

    fn reads_seen(&self) -> usize {
        self.fake.seen.iter().filter(|seen| is_read(seen)).count()
    }
}

fn is_read(seen: &Seen) -> bool {
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == NvmOpcode::READ.0
}

fn slba(seen: &Seen) -> u32 {
    seen.sqe.cdw10.get()
}

fn count(ticket: &Ticket, status: u16) -> usize {
    ticket.outcomes().filter(|outcome| outcome.status == status).count()
}

fn status_of(ticket: &Ticket) -> Vec<u16> {
    ticket.outcomes().map(|outcome| outcome.status).collect()
}

#[test]
fn a_plan_fills_one_region() {
    for grant in [Grant::Persistent, Grant::PerCommand] {
        let mut world = World::new(1024);
        let shards = open(&mut world);
        let mut plan = rows(300, 1000);
        plan.push(entry(0, 1024, 300_000));
        plan.push(entry(7, 200_000, 301_024));
        plan.push(entry(9, 0, 0));
        let region = Region::allocate(501_024, grant).unwrap();
        let ticket = world.submit(&shards, &plan, &region);
        assert!(region.is_in_flight() && !ticket.is_done());
        world.finish(&ticket);
        assert_eq!(ticket.progress().failed, 0);
        assert!(!region.is_in_flight());
        for entry in &plan {
            let expected = expected(entry.offset as usize, entry.length as usize);
            assert!(bytes(&region, entry) == expected, "{entry:?} {grant:?}");
        }
        let paths: Vec<_> = ticket.outcomes().map(|outcome| outcome.path).collect();
        assert_eq!(paths[299..], [2, 1, 3, 0], "bounced, direct, both, nothing");
        assert!(ticket.outcomes().take(302).all(|outcome| outcome.attempts == 1));
        assert_eq!((ticket.outcome(302).attempts, ticket.error(0).is_none()), (0, true));
    }
}

#[test]
fn a_plan_that_is_none_is_refused_whole() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    let region = Region::allocate(10_000, Grant::Persistent).unwrap();
    let refused = |plan: &[Entry]| {
        let error = world.host.submit(&shards, plan, &region, Submit::default()).unwrap_err();
        assert!(!region.is_in_flight());
        error
    };
    let good = entry(0, 100, 0);
    let error = refused(&[good, Entry { shard: 1, ..entry(0, 1, 500) }]);
    assert!(matches!(error, PlanError::NoShard { entry: 1, shard: 1, shards: 1 }), "{error}");
    for (offset, length) in [(64 * 512, 1), (64 * 512 - 1, 2), (u64::MAX, u32::MAX)] {
        let error = refused(&[good, entry(offset, length, 500)]);
        assert!(matches!(error, PlanError::BeyondShard { entry: 1, .. }), "{error}");
    }
    for (dst, length) in [(10_000, 1), (9_999, 2), (u64::MAX, 1), (u64::MAX - 1, 1)] {
        let error = refused(&[good, entry(0, length, dst)]);
        assert!(matches!(error, PlanError::BeyondRegion { entry: 1, .. }), "{error}");
    }
    for (first, second) in [((0, 100), (99, 1)), ((50, 10), (0, 51)), ((0, 9), (0, 9))] {
        let plan = [first, second].map(|(dst, length)| entry(0, length, dst));
        let error = refused(&plan);
        assert!(matches!(error, PlanError::Overlap { first: 0, second: 1 }), "{error}");
    }
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reads_seen(), 0);
}

#[test]
fn bytes_in_flight_are_not_lent_twice() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    let region = Region::allocate(10_000, Grant::Persistent).unwrap();
    let first = world.submit(&shards, &[entry(0, 100, 0), entry(0, 100, 200)], &region);
    let options = Submit::default();
    let overlapping = world.host.submit(&shards, &[entry(0, 10, 290)], &region, options);
    let error = overlapping.unwrap_err();
    assert!(matches!(error, PlanError::InFlight { start: 290, end: 300 }), "{error}");
    let between = world.submit(&shards, &[entry(512, 100, 100)], &region);
    world.finish(&first);
    let again = world.submit(&shards, &[entry(1, 10, 290)], &region);
    world.finish(&between);
    world.finish(&again);
    assert_eq!(bytes(&region, &entry(1, 10, 290)), expected(1, 10));
    assert_eq!(bytes(&region, &entry(1, 100, 100)), expected(512, 100));
}

#[test]
fn each_range_has_an_outcome_of_its_own() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    world.fake.script = Box::new(|seen| match is_read(seen) && slba(seen) == 16 {
        true => Action::Fail(Status::UNRECOVERED_READ_ERROR),
        false => Action::Normal,
    });
    let region = Region::allocate(10_000, Grant::Persistent).unwrap();
    let plan = [entry(0, 512, 0), entry(16 * 512, 512, 512), entry(512, 512, 1024)];
    let ticket = world.submit(&shards, &plan, &region);
    world.finish(&ticket);
    assert_eq!(status_of(&ticket), [0, Status::UNRECOVERED_READ_ERROR.to_bits(), 0]);
    let error = ticket.error(1).unwrap();
    assert_eq!((error.offset(), error.length()), (Some(16 * 512), Some(512)));
    assert_eq!((error.status(), error.attempts()), (Some(Status::UNRECOVERED_READ_ERROR), 1));
    assert_eq!(bytes(&region, &plan[2]), expected(512, 512));
}

#[test]
fn an_empty_plan_is_done() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    let region = Region::allocate(0, Grant::Persistent).unwrap();
    let ticket = world.submit(&shards, &[], &region);
    assert!(ticket.is_done() && ticket.is_empty() && !region.is_in_flight());
    let finished = pin!(ticket.finished(5));
    let polled = finished.poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(polled, Poll::Ready(_)));
}

#[test]
fn nothing_is_sent_of_a_cancelled_plan() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    let region = Region::allocate(100_000, Grant::Persistent).unwrap();
    let ticket = world.submit(&shards, &rows(100, 1000), &region);
    assert_eq!(ticket.cancel(), 100);
    assert!(ticket.is_done() && !region.is_in_flight());
    assert_eq!(count(&ticket, Outcome::CANCELLED), 100);
    assert!(matches!(ticket.error(7).unwrap().kind(), ErrorKind::Cancelled));
    world.pass(Duration::from_secs(1));
    assert_eq!((world.reads_seen(), ticket.cancel()), (0, 0));
}

#[test]
fn what_was_sent_of_a_cancelled_plan_is_waited_for() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    let region = Region::allocate(300_000, Grant::Persistent).unwrap();
    let ticket = world.submit(&shards, &rows(300, 1000), &region);
    world.run_until_seen(10);
    let queued = ticket.cancel();
    let in_flight = 300 - ticket.progress().done;
    assert!(queued >= 300 - 127 && in_flight > 0, "{queued} queued, {in_flight} in flight");
    assert!(region.is_in_flight(), "the target may still write");
    let sent = world.reads_seen() + in_flight;
    world.finish(&ticket);
    assert!(!region.is_in_flight() && world.reads_seen() <= sent);
    let (ok, cancelled) = (count(&ticket, 0), count(&ticket, Outcome::CANCELLED));
    assert_eq!((ok + cancelled, ticket.cancel()), (300, 0));
}

#[test]
fn a_range_between_two_of_its_commands_is_cancelled() {
    let mut world = World::new(4096);
    let shards = open(&mut world);
    let region = Region::allocate(2 << 20, Grant::Persistent).unwrap();
    let ticket = world.submit(&shards, &[entry(0, 2 << 20, 0)], &region);
    world.run_until_seen(1);
    assert_eq!(ticket.cancel(), 0);
    world.finish(&ticket);
    assert_eq!(status_of(&ticket), [Outcome::CANCELLED]);
}

#[test]
fn a_silent_target_keeps_the_memory_of_a_cancelled_plan_until_its_connection_ends() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    let region = Region::allocate(2000, Grant::Persistent).unwrap();
    world.fake.script = Box::new(|seen| {
        let is_abort = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::ABORT.0;
        if is_read(seen) || is_abort { Action::Ignore } else { Action::Normal }
    });
    let ticket = world.submit(&shards, &rows(2, 1000), &region);
    world.run_until_seen(2);
    let connections = world.fake.connections;
    assert_eq!(ticket.cancel(), 0);
    world.pass(Duration::from_secs(29));
    assert!(region.is_in_flight() && !ticket.is_done());
    world.finish(&ticket);
    assert_eq!(count(&ticket, Outcome::CANCELLED), 2);
    world.pass(Duration::from_secs(5));
    assert!(world.fake.connections > connections, "the connection was ended and made again");
}

/// Counts its drops, as an exporter of memory that is to be told of the end.
struct CountsDrops(Arc<AtomicUsize>);

impl Drop for CountsDrops {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_dropped_ticket_frees_no_memory_that_the_target_may_write_to() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    let drops = Arc::new(AtomicUsize::new(0));
    let memory = NonNull::from(Box::leak(vec![0u8; 300_000].into_boxed_slice())).cast();
    let owner = Box::new(CountsDrops(Arc::clone(&drops)));
    // SAFETY: the memory is never freed, and used through the region only.
    let region = unsafe { Region::from_raw(memory, 300_000, Grant::Persistent, owner) };
    let ticket = world.submit(&shards, &rows(300, 1000), &region);
    world.run_until_seen(10);
    drop((ticket, region));
    assert_eq!(drops.load(Ordering::SeqCst), 0);
    world.pass(Duration::from_secs(1));
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert!(world.reads_seen() < 300);
}

#[test]
fn a_plan_survives_a_lost_connection() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    let region = Region::allocate(300_000, Grant::Persistent).unwrap();
    let plan = rows(300, 1000);
    let ticket = world.submit(&shards, &plan, &region);
    world.run_until_seen(150);
    world.fake.disconnect_all(world.now);
    world.finish(&ticket);
    assert_eq!(ticket.progress().failed, 0);
    assert!(ticket.outcomes().any(|outcome| outcome.attempts == 2));
    for entry in &plan {
        assert!(bytes(&region, entry) == expected(entry.offset as usize, 1000), "{entry:?}");
    }
}

#[test]
fn a_target_that_vanishes_fails_what_it_did_not_give() {
    let options = ControllerOptions::new().loss_timeout(Duration::from_secs(10));
    let mut world = World::with(1, SimConfig::default(), 1024, options);
    let shards = open(&mut world);
    let region = Region::allocate(300_000, Grant::Persistent).unwrap();
    let ticket = world.submit(&shards, &rows(300, 1000), &region);
    world.run_until_seen(150);
    world.fake.reject = Some(Vec::new());
    world.fake.disconnect_all(world.now);
    world.finish(&ticket);
    assert!(!region.is_in_flight());
    let (ok, lost) = (count(&ticket, 0), count(&ticket, Outcome::LOST));
    assert!(ok > 0 && lost > 100 && ok + lost == 300, "{ok} read, {lost} lost");
    let error = ticket.error(299).unwrap();
    assert!(error.is_retryable() && error.offset() == Some(299 * 1009), "{error}");
    let again = world.submit(&shards, &rows(3, 1000), &region);
    world.finish(&again);
    assert_eq!(count(&again, Outcome::LOST), 3);
}

#[test]
fn a_plan_is_over_at_its_deadline() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    world.fake.script = Box::new(|seen| match is_read(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
    let region = Region::allocate(300_000, Grant::Persistent).unwrap();
    let options = Submit { deadline: Some(Duration::from_millis(300)), ..Submit::default() };
    let ticket = world.host.submit(&shards, &rows(300, 1000), &region, options).unwrap();
    let begin = world.now;
    world.finish(&ticket);
    assert_eq!(count(&ticket, Outcome::TIMED_OUT), 300);
    assert!(world.now - begin < Duration::from_secs(4));
}

#[test]
fn a_small_plan_does_not_wait_for_a_long_one() {
    for class in [Class::Foreground, Class::Background] {
        let mut world = World::new(64 << 11);
        let shards = open(&mut world);
        let region = Region::allocate((64 << 20) + 100_000, Grant::Persistent).unwrap();
        let long: Vec<_> = (0..4).map(|i| entry(i << 24, 1 << 24, i << 24)).collect();
        let long = world.host.submit(&shards, &long, &region, Submit { class, deadline: None });
        let long = long.unwrap();
        world.run_until_seen(10);
        let rows: Vec<_> = (0..100).map(|i| entry(i * 1009, 1000, (64 << 20) + i * 1000)).collect();
        let before = world.reads_seen();
        let small = world.submit(&shards, &rows, &region);
        world.finish(&small);
        let meanwhile = world.reads_seen() - before - 100;
        // What was in flight anyway, and what follows while the small plan's commands are in
        // progress: a queue's worth of 127 commands each, of 512.
        assert!(meanwhile <= 2 * 127, "{meanwhile} commands of the long plan, {class:?}");
        assert!(!long.is_done());
    }
}

#[test]
fn the_bytes_in_flight_are_bounded() {
    let mut world = World::new(64 << 11);
    // Commands of up to 1 MiB: 127 of them were 127 MiB.
    world.fake.identify.mdts = 8;
    let shards = open(&mut world);
    world.fake.script = Box::new(|seen| match is_read(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
    let region = Region::allocate(64 << 20, Grant::Persistent).unwrap();
    let ticket = world.submit(&shards, &[entry(0, 64 << 20, 0)], &region);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.reads_seen(), 16);
    drop(ticket);
}

#[test]
fn plans_of_several_waiters_wake_each_once() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    let region = Region::allocate(300_000, Grant::Persistent).unwrap();
    let ticket = world.submit(&shards, &rows(300, 1000), &region);
    let wakes = [1, 300].map(|wanted| (wanted, Arc::new(CountsWakes::default())));
    for (wanted, count) in &wakes {
        let waker = Waker::from(Arc::clone(count));
        let mut finished = pin!(ticket.finished(*wanted));
        assert!(finished.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    while !ticket.is_done() {
        assert!(world.step());
    }
    assert!(wakes.iter().all(|(_, count)| count.0.load(Ordering::SeqCst) == 1));
}

#[derive(Default)]
struct CountsWakes(AtomicUsize);

impl Wake for CountsWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

//! Adjacent ranges of plans that are read with one command, and targets that refuse it, answer
//! less, or are lost in between.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, Entry, ErrorKind, Grant, Outcome, Region, Shards, Submit, Ticket,
};
use nvme_proto::identify::RangeListOffer;
use nvme_proto::{Cqe, NvmOpcode, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Fake, Seen, pattern};
use super::replicas::{self, is_read};
use super::world::World;

const ROWS: u64 = 300;
const ROW_BYTES: u32 = 1000;

/// Rows one behind the other in the region.
fn rows(count: u64) -> Vec<Entry> {
    let entry = |row| Entry {
        shard: 0,
        length: ROW_BYTES,
        offset: row * 1009,
        dst: row * u64::from(ROW_BYTES),
    };
    (0..count).map(entry).collect()
}

fn is_list(seen: &Seen) -> bool {
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == NvmOpcode::READ_RANGES.0
}

fn offer(fake: &mut Fake) {
    fake.identify.set_range_list_offer(&RangeListOffer { ranges: 50, bytes: 48_000 });
}

/// A world whose target offers lists, and a plan for it.
struct Listing {
    world: World,
    shards: Shards,
    region: Region,
}

impl Listing {
    fn new() -> Self {
        Self::with(ControllerOptions::default(), Grant::Persistent)
    }

    fn with(options: ControllerOptions, grant: Grant) -> Self {
        let mut world = World::with(1, SimConfig::default(), 1024, options);
        offer(&mut world.fake);
        let shards = Shards::new([world.open().1]).unwrap();
        let region = Region::allocate(ROWS as usize * ROW_BYTES as usize, grant).unwrap();
        Self { world, shards, region }
    }

    /// Sets what the target does with lists; it does everything else as usual.
    fn answer(&mut self, mut action: impl FnMut(&Seen) -> Action + 'static) {
        self.world.fake.script = Box::new(move |seen| match is_list(seen) {
            true => action(seen),
            false => Action::Normal,
        });
    }

    fn submit(&self, plan: &[Entry]) -> Ticket {
        self.world.host.submit(&self.shards, plan, &self.region, Submit::default()).unwrap()
    }

    /// Reads a plan to its end, and checks its bytes.
    #[track_caller]
    fn read(&mut self, plan: &[Entry]) -> Vec<Outcome> {
        let ticket = self.submit(plan);
        self.ends_well(&ticket, plan);
        ticket.outcomes().collect()
    }

    #[track_caller]
    fn ends_well(&mut self, ticket: &Ticket, plan: &[Entry]) {
        self.world.run(ticket.finished(ticket.len()));
        assert_eq!(ticket.progress().failed, 0, "{:?}", ticket.error(0));
        for entry in plan {
            let mut got = vec![0; entry.length as usize];
            self.region.copy_out(entry.dst as usize, &mut got).unwrap();
            let expected = (entry.offset as usize..).map(pattern).take(got.len());
            assert!(got.into_iter().eq(expected), "{entry:?}");
        }
    }

    fn run_until_listed(&mut self, lists: usize) {
        while self.lists() < lists {
            assert!(self.world.step(), "the lists end");
        }
    }

    fn lists(&self) -> usize {
        self.world.fake.count(is_list)
    }

    fn reads(&self) -> usize {
        self.world.fake.count(is_read)
    }

    fn listed_ranges(&self) -> u64 {
        self.world.host.counters().listed_ranges
    }
}

#[test]
fn adjacent_rows_are_read_with_few_commands() {
    for grant in [Grant::Persistent, Grant::PerCommand] {
        let mut listing = Listing::with(ControllerOptions::default(), grant);
        let outcomes = listing.read(&rows(ROWS));
        // 48 rows of 1,000 bytes are within the limit of bytes, and 50 within that of ranges.
        assert_eq!((listing.lists(), listing.reads()), (7, 0), "{grant:?}");
        assert_eq!(listing.listed_ranges(), ROWS);
        let one = |outcome: Outcome| outcome.attempts == 1 && outcome.path == Outcome::DIRECT;
        assert!(outcomes.into_iter().all(one));
        assert!(!listing.region.is_in_flight());
    }
}

#[test]
fn ranges_that_do_not_adjoin_are_in_other_lists() {
    let mut listing = Listing::new();
    let entry = |offset, length, dst| Entry { shard: 0, length, offset, dst };
    let plan = [
        entry(3, 100, 0),
        entry(4000, 100, 100),
        // A gap in the memory.
        entry(8000, 100, 300),
        entry(1, 100, 400),
        // Nothing, and then whole blocks alone, which need no list.
        entry(5, 0, 500),
        entry(1024, 512, 600),
        // More than a list may have.
        entry(77, 48_001, 2000),
        entry(99, 300, 60_000),
    ];
    listing.read(&plan);
    assert_eq!(listing.lists(), 3);
    assert_eq!(listing.listed_ranges(), 5);
}

#[test]
fn a_target_that_refuses_the_opcode_is_asked_no_more() {
    let mut listing = Listing::new();
    listing.answer(|_| Action::Fail(Status::INVALID_OPCODE.with_dnr()));
    let outcomes = listing.read(&rows(ROWS));
    let asked = listing.lists();
    assert_eq!((listing.reads(), listing.listed_ranges()), (ROWS as usize, 0));
    assert!(outcomes.iter().all(|outcome| outcome.attempts == 1));
    listing.read(&rows(ROWS));
    assert_eq!(listing.lists(), asked);
}

#[test]
fn what_a_list_does_not_give_is_read() {
    for given in [1, 30, 47] {
        let mut listing = Listing::new();
        listing.world.fake.most_of_list = given;
        let outcomes = listing.read(&rows(48));
        assert_eq!(listing.listed_ranges(), u64::from(given));
        assert_eq!(listing.reads(), 48 - given as usize);
        assert!(outcomes.iter().all(|outcome| outcome.attempts == 1));
    }
}

#[test]
fn lists_pause_while_they_give_little() {
    let mut listing = Listing::new();
    listing.world.fake.most_of_list = 0;
    for _ in 0..20 {
        listing.read(&rows(ROWS));
    }
    // Pauses of 128, 256 ... ranges, after what was sent before the first response.
    let lists = listing.lists();
    assert!((7..16).contains(&lists), "{lists}");
    listing.world.fake.most_of_list = u32::MAX;
    for _ in 0..40 {
        listing.read(&rows(ROWS));
    }
    let before = listing.reads();
    listing.read(&rows(ROWS));
    assert_eq!(listing.reads(), before, "everything is in lists again");
}

#[test]
fn each_range_has_the_error_of_its_own_read() {
    let mut listing = Listing::new();
    listing.world.fake.script = Box::new(|seen| match seen {
        seen if is_list(seen) => Action::Fail(Status::UNRECOVERED_READ_ERROR),
        // Row 5 begins in block 9.
        seen if is_read(seen) && seen.sqe.cdw10.get() == 9 => {
            Action::Fail(Status::UNRECOVERED_READ_ERROR)
        }
        _ => Action::Normal,
    });
    let ticket = listing.submit(&rows(20));
    listing.world.run(ticket.finished(20));
    let failed: Vec<usize> = (0..20).filter(|&row| !ticket.outcome(row).is_ok()).collect();
    assert_eq!(failed, [5]);
    let error = ticket.error(5).unwrap();
    assert_eq!(error.status(), Some(Status::UNRECOVERED_READ_ERROR));
    assert_eq!((error.offset(), error.length()), (Some(5 * 1009), Some(1000)));
}

#[test]
fn more_ranges_than_a_list_has_violate_the_protocol() {
    let mut listing = Listing::new();
    let first = Rc::new(Cell::new(true));
    listing.answer(move |seen| match first.replace(false) {
        true => Action::Answer(Cqe::success(seen.sqe.cid()).with_dw0(49)),
        false => Action::Normal,
    });
    let outcomes = listing.read(&rows(ROWS));
    assert_eq!(listing.world.host.counters().protocol_violations, 1);
    assert!(outcomes.iter().any(|outcome| outcome.attempts == 2));
}

#[test]
fn a_connection_that_is_lost_takes_no_range_with_it() {
    let mut listing = Listing::new();
    let left = Rc::new(Cell::new(3));
    listing.answer(move |_| {
        left.set(left.get() - 1);
        if left.get() == 0 { Action::Disconnect } else { Action::Normal }
    });
    let plan = rows(ROWS);
    let ticket = listing.submit(&plan);
    listing.run_until_listed(3);
    listing.answer(|_| Action::Normal);
    listing.ends_well(&ticket, &plan);
    let attempts = |count| ticket.outcomes().filter(|outcome| outcome.attempts == count).count();
    assert!(attempts(2) > 0 && attempts(1) + attempts(2) == ROWS as usize);
}

#[test]
fn a_cancelled_plan_waits_for_its_lists() {
    let mut listing = Listing::new();
    listing.answer(|_| Action::Ignore);
    let ticket = listing.submit(&rows(ROWS));
    listing.run_until_listed(7);
    assert_eq!(ticket.cancel(), 0, "all of it is in flight");
    assert!(listing.region.is_in_flight(), "the target may still write");
    listing.world.fake.complete_ignored(Status::SUCCESS);
    listing.world.run(ticket.finished(ticket.len()));
    assert!(ticket.outcomes().all(|outcome| outcome.status == Outcome::CANCELLED));
    assert!(!listing.region.is_in_flight());
}

#[test]
fn lists_are_over_at_the_deadline_of_their_plan() {
    let mut listing = Listing::new();
    listing.answer(|_| Action::Ignore);
    let options = Submit { deadline: Some(Duration::from_millis(300)), ..Submit::default() };
    let (shards, region) = (&listing.shards, &listing.region);
    let ticket = listing.world.host.submit(shards, &rows(ROWS), region, options).unwrap();
    let begin = listing.world.now;
    listing.run_until_listed(7);
    listing.world.pass(Duration::from_millis(400));
    listing.world.fake.complete_ignored(Status::ABORT_REQUESTED);
    listing.world.run(ticket.finished(ticket.len()));
    let took = listing.world.now - begin;
    assert!(took < Duration::from_secs(4), "{took:?}");
    assert!(ticket.outcomes().all(|outcome| outcome.status == Outcome::TIMED_OUT));
    let error = ticket.error(299).unwrap();
    assert!(matches!(error.kind(), ErrorKind::TimedOut { .. }), "{error}");
    assert_eq!((error.offset(), error.length()), (Some(299 * 1009), Some(1000)));
}

#[test]
fn a_target_that_stays_away_fails_the_ranges_of_its_lists() {
    let options = ControllerOptions::new().loss_timeout(Duration::from_secs(10));
    let mut listing = Listing::with(options, Grant::Persistent);
    listing.answer(|_| Action::Ignore);
    let ticket = listing.submit(&rows(ROWS));
    listing.run_until_listed(7);
    listing.world.fake.reject = Some(Vec::new());
    listing.world.fake.disconnect_all(listing.world.now);
    listing.world.run(ticket.finished(ticket.len()));
    assert!(ticket.outcomes().all(|outcome| outcome.status == Outcome::LOST));
    assert!(ticket.error(7).unwrap().is_retryable());
    assert!(!listing.region.is_in_flight());
}

/// Both replicas offer lists; one is lost while it has some.
#[test]
fn ranges_of_a_list_are_read_from_another_replica() {
    let mut world = replicas::world();
    offer(&mut world.fake);
    offer(&mut world.others[0]);
    world.others[0].script = Box::new(|seen| match is_list(seen) || is_read(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
    let reading = replicas::Reading::begin(&mut world);
    while world.others[0].count(is_list) < 5 {
        assert!(world.step());
    }
    let now = world.now;
    world.others[0].reject = Some(Vec::new());
    world.others[0].disconnect_all(now);
    reading.ends_well(&mut world);
    assert!(reading.attempts().contains(&2));
}

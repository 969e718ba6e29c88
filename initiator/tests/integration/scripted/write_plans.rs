//! Plans that write many ranges from one region.
#![expect(unsafe_code, reason = "a region of foreign memory")]

use std::ptr::NonNull;
use std::time::Duration;

use feedrail_initiator::{Entry, Grant, Outcome, PlanError, Region, Shards, Submit, Ticket};
use nvme_proto::{NvmOpcode, Status};

use super::fake::{Action, Seen, pattern};
use super::world::World;

/// Force Unit Access, bit 30 of Command Dword 12 of Write.
const FUA: u32 = 1 << 30;

fn entry(offset: u64, length: u32, dst: u64) -> Entry {
    Entry { shard: 0, length, offset, dst }
}

/// `count` rows of `length` bytes that fill a part of the shard without gaps, in an order that
/// mixes them. Neighbours share blocks.
fn rows(count: u64, length: u32) -> Vec<Entry> {
    let row = |i| entry(i * 7 % count * u64::from(length), length, i * u64::from(length));
    (0..count).map(row).collect()
}

/// Bytes that are on no disk.
fn fresh(length: usize) -> Vec<u8> {
    (0..length).map(|at| !pattern(at).rotate_left(3)).collect()
}

/// A region of memory that is mapped read-only.
fn read_only_region() -> Region {
    static BYTES: [u8; 4096] = [0x5A; 4096];
    let address = NonNull::from(&BYTES).cast();
    // SAFETY: a static is mapped for ever, and this one is never written.
    unsafe { Region::from_raw_read_only(address, BYTES.len(), Box::new(())) }
}

fn open(world: &mut World) -> Shards {
    Shards::new([world.open().1]).unwrap()
}

fn is_write(seen: &Seen) -> bool {
    !seen.qid.is_admin() && !seen.sqe.is_fabrics() && seen.sqe.opcode == NvmOpcode::WRITE.0
}

fn disk_after(before: &[u8], plan: &[Entry], bytes: &[u8]) -> Vec<u8> {
    let mut disk = before.to_vec();
    for &Entry { length, offset, dst, .. } in plan {
        let [to, from] = [offset, dst].map(|at| at as usize..at as usize + length as usize);
        disk[to].copy_from_slice(&bytes[from]);
    }
    disk
}

impl World {
    fn submit_write(&self, shards: &Shards, plan: &[Entry], from: &Region) -> Ticket {
        self.host.submit_write(shards, plan, from, Submit::default()).unwrap()
    }

    fn end(&mut self, ticket: &Ticket) {
        self.run(ticket.finished(ticket.len()));
        assert!(ticket.is_done());
    }

    fn run_until_written(&mut self, writes: usize) {
        while self.fake.count(is_write) < writes {
            assert!(self.step(), "a write is missing");
        }
    }
}

#[test]
fn a_plan_is_written_from_one_region() {
    for grant in [Grant::Persistent, Grant::PerCommand] {
        let mut world = World::new(2048);
        let shards = open(&mut world);
        let mut plan = rows(300, 1000);
        plan.push(entry(400_003, 200_000, 300_000));
        plan.push(entry(800 * 512, 0, 0));
        let bytes = fresh(500_000);
        let region = Region::from_vec(bytes.clone(), grant);
        let before = world.fake.disk();
        let ticket = world.submit_write(&shards, &plan, &region);
        assert!(region.is_in_flight() && !ticket.is_done());
        world.end(&ticket);
        assert_eq!((ticket.progress().failed, region.is_in_flight()), (0, false));
        assert!(world.fake.disk() == disk_after(&before, &plan, &bytes), "{grant:?}");
        let is_durable = |seen: &Seen| is_write(seen) && seen.sqe.cdw12.get() & FUA != 0;
        assert_eq!(world.fake.count(is_durable), 0);
    }
}

#[test]
fn a_durable_plan_has_force_unit_access() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    let region = Region::from_vec(fresh(10_000), Grant::Persistent);
    let plan = [entry(0, 4096, 0), entry(5000, 100, 5000)];
    let options = Submit::default();
    let ticket = world.host.submit_write_durable(&shards, &plan, &region, options).unwrap();
    world.end(&ticket);
    assert_eq!(ticket.progress().failed, 0);
    let durable = world.fake.count(|seen| is_write(seen) && seen.sqe.cdw12.get() & FUA != 0);
    assert_eq!((durable, world.fake.count(is_write)), (2, 2));
}

#[test]
fn memory_that_is_mapped_read_only_is_written_from() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    let region = read_only_region();
    // The last entry has the bytes of the first.
    let plan = [entry(512, 2048, 0), entry(5000, 100, 3000), entry(10_240, 2048, 0)];
    let before = world.fake.disk();
    let ticket = world.submit_write(&shards, &plan, &region);
    // Plans that write share their sources.
    let other = world.submit_write(&shards, &[entry(20_480, 4096, 0)], &region);
    world.end(&ticket);
    world.end(&other);
    assert_eq!((ticket.progress().failed, other.progress().failed), (0, 0));
    let disk = disk_after(&before, &plan, &[0x5A; 4096]);
    assert_eq!(world.fake.disk(), disk_after(&disk, &[entry(20_480, 4096, 0)], &[0x5A; 4096]));
    let refused = world.host.submit(&shards, &plan[..1], &region, Submit::default()).unwrap_err();
    assert!(matches!(refused, PlanError::ReadOnlyRegion), "{refused}");
}

#[test]
fn a_plan_that_cannot_be_written_is_refused_whole() {
    let mut world = World::new(64);
    let namespace = world.open().1;
    let (shards, _) =
        Shards::replicated([vec![namespace.clone()], vec![namespace.clone(); 2]]).unwrap();
    let region = Region::from_vec(fresh(1000), Grant::Persistent);
    let refused = |plan: &[Entry]| {
        let error = world.host.submit_write(&shards, plan, &region, Submit::default()).unwrap_err();
        assert!(!region.is_in_flight());
        error
    };
    let good = entry(0, 512, 0);
    let error = refused(&[good, Entry { shard: 1, ..good }]);
    assert!(matches!(error, PlanError::Replicated { entry: 1, shard: 1 }), "{error}");
    let error = refused(&[good, entry(64 * 512 - 1, 2, 0)]);
    assert!(matches!(error, PlanError::BeyondShard { entry: 1, .. }), "{error}");
    let error = refused(&[good, entry(0, 2, 999)]);
    assert!(matches!(error, PlanError::BeyondRegion { entry: 1, .. }), "{error}");
    world.pass(Duration::from_secs(1));
    assert_eq!(world.fake.count(is_write), 0);
}

#[test]
fn writes_to_one_block_by_two_plans_take_turns() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    let region = Region::from_vec(fresh(2000), Grant::Persistent);
    let plans =
        [[entry(0, 300, 0), entry(600, 300, 300)], [entry(300, 300, 600), entry(900, 124, 900)]];
    let before = world.fake.disk();
    let tickets = plans.map(|plan| world.submit_write(&shards, &plan, &region));
    tickets.iter().for_each(|ticket| world.end(ticket));
    assert!(tickets.iter().all(|ticket| ticket.progress().failed == 0));
    assert_eq!(world.fake.disk(), disk_after(&before, plans.as_flattened(), &fresh(2000)));
}

#[test]
fn a_plan_of_writes_survives_a_lost_connection() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    let bytes = fresh(300_000);
    let region = Region::from_vec(bytes.clone(), Grant::Persistent);
    let plan: Vec<_> = (0..500).map(|i| entry(i * 1024, 512, i * 512)).collect();
    let before = world.fake.disk();
    let ticket = world.submit_write(&shards, &plan, &region);
    world.run_until_written(150);
    world.fake.disconnect_all(world.now);
    world.end(&ticket);
    assert_eq!(ticket.progress().failed, 0);
    assert!(ticket.outcomes().any(|outcome| outcome.attempts == 2));
    assert!(world.fake.disk() == disk_after(&before, &plan, &bytes));
}

#[test]
fn what_was_sent_of_a_cancelled_write_is_waited_for() {
    let mut world = World::new(1024);
    let shards = open(&mut world);
    let region = Region::from_vec(fresh(300_000), Grant::Persistent);
    let ticket = world.submit_write(&shards, &rows(300, 1000), &region);
    world.run_until_written(5);
    ticket.cancel();
    assert!(region.is_in_flight(), "the target may still read");
    world.end(&ticket);
    assert!(!region.is_in_flight() && ticket.progress().failed > 0);
    let written = world.fake.count(is_write);
    world.pass(Duration::from_secs(1));
    assert_eq!(world.fake.count(is_write), written, "a write was sent after the end");
    // The blocks are free for other writes.
    let again = world.submit_write(&shards, &rows(300, 1000), &region);
    world.end(&again);
    assert_eq!(again.progress().failed, 0);
}

#[test]
fn a_write_that_the_target_refuses_has_its_status() {
    let mut world = World::new(64);
    let shards = open(&mut world);
    world.fake.script = Box::new(|seen| match is_write(seen) {
        true => Action::Fail(Status::NAMESPACE_IS_WRITE_PROTECTED.with_dnr()),
        false => Action::Normal,
    });
    let region = Region::from_vec(fresh(1024), Grant::Persistent);
    let ticket = world.submit_write(&shards, &[entry(0, 512, 0), entry(513, 5, 0)], &region);
    world.end(&ticket);
    let protected = Status::NAMESPACE_IS_WRITE_PROTECTED.with_dnr().to_bits();
    assert!(ticket.outcomes().all(|outcome| outcome.status == protected));
    assert_eq!(ticket.outcome(0).path, Outcome::DIRECT);
}

//! Targets that do anything at all, at any time: nothing panics, hangs or keeps the caller's
//! memory.

use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Grant, RegionSlice};
use nvme_proto::{Cid, Cqe, FromBytes, Status};
use rdma::sim::SimConfig;

use super::fake::{Action, Seen};
use super::world::{World, read_range, write_range};

/// A small generator of numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// Misbehaves once in `odds` commands.
fn anything(random: &mut Random, odds: u64, seen: &Seen) -> Action {
    if random.below(odds) != 0 {
        return Action::Normal;
    }
    let cid = seen.sqe.cid();
    match random.below(9) {
        0 => Action::Ignore,
        1 => Action::DataOnly,
        2 => Action::Disconnect,
        3 => Action::Answer(Cqe::success(Cid(random.next() as u16))),
        4 => Action::Answer(Cqe::success(cid).with_result(random.next())),
        5 => Action::Fail(Status::from_bits(random.next() as u16)),
        6 => Action::Bytes(random.bytes(random.0 as usize % 40)),
        7 => {
            let mut bytes = random.bytes(16);
            bytes[12..14].copy_from_slice(&cid.0.to_le_bytes());
            Action::Bytes(bytes)
        }
        _ => match Cqe::read_from_bytes(&random.bytes(16)) {
            Ok(cqe) => Action::Answer(cqe),
            Err(_) => Action::Ignore,
        },
    }
}

fn run(seed: u64, odds: u64, garble: bool) {
    let options = ControllerOptions::new()
        .io_queues(3)
        .queue_entries(8)
        .io_timeout(Duration::from_secs(4))
        .admin_timeout(Duration::from_secs(3))
        .connect_timeout(Duration::from_secs(3))
        .reconnect_delay(Duration::from_millis(300))
        .loss_timeout(Duration::from_secs(10));
    let mut world = World::with(seed, SimConfig::default(), 512, options);
    let mut random = Random(seed * 2 + 1);
    if garble {
        for at in 0..random.below(40) {
            let offset = random.below(4096) as usize;
            let byte = random.next() as u8;
            let fake = &mut world.fake;
            match at % 2 {
                0 => zerocopy::IntoBytes::as_mut_bytes(&mut *fake.identify)[offset] = byte,
                _ => zerocopy::IntoBytes::as_mut_bytes(&mut *fake.namespace)[offset] = byte,
            }
        }
    }
    let mut script = Random(seed + 77);
    world.fake.script = Box::new(move |seen| anything(&mut script, odds, seen));
    let mut opened = None;
    for _ in 0..20 {
        let Ok(controller) = world.connect() else { continue };
        let opening = controller.namespace(nvme_proto::Nsid(1));
        if let Ok(namespace) = world.run(opening) {
            opened = Some((controller, namespace));
            break;
        }
    }
    let Some((controller, namespace)) = opened else { return };
    for round in 0..6 {
        let grant = if round % 2 == 0 { Grant::Persistent } else { Grant::PerCommand };
        let slices = RegionSlice::allocate(40 * 3_000, grant).unwrap().chunks(3_000);
        let mut offset = || random.below(240_000);
        let outcomes = if round % 3 == 2 {
            let ranges: Vec<_> =
                slices.map(|slice| write_range(&namespace, offset(), slice)).collect();
            world.run(world.host.write_many(ranges))
        } else {
            let ranges: Vec<_> =
                slices.map(|slice| read_range(&namespace, offset(), slice)).collect();
            world.run(world.host.read_many(ranges))
        };
        // Every slice is back, and nothing else has a part of it.
        assert_eq!(outcomes.len(), 40);
        let slices = outcomes.into_iter().map(|outcome| outcome.slice);
        assert_eq!(slices.reduce(|a, b| a.join(b).unwrap()).unwrap().len(), 40 * 3_000);
        let _ = world.run(controller.identify());
    }
    drop((controller, namespace));
    world.fake.script = Box::new(|_| Action::Normal);
    world.pass(Duration::from_secs(20));
    assert!(!world.fake.is_connected(), "seed {seed}");
}

#[test]
fn now_and_then_anything() {
    (1..=60).for_each(|seed| run(seed, 40, false));
}

#[test]
fn anything_at_any_time() {
    (1..=60).for_each(|seed| run(seed, 4, false));
}

#[test]
fn identify_data_of_any_content() {
    (1..=60).for_each(|seed| run(seed, 1_000, true));
}

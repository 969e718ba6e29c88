//! A target that does what it should.

use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;

use feedrail_initiator::{ErrorKind, Grant, Namespace, Nsid, RegionSlice};
use nvme_proto::identify::{Cns, NamespaceList};
use nvme_proto::{AdminOpcode, NvmOpcode};

use super::fake::{Action, Seen, pattern, set_file};
use super::world::{World, read_range, write_range};

fn expected(offset: usize, length: usize) -> Vec<u8> {
    (offset..offset + length).map(pattern).collect()
}

#[test]
fn connects_and_identifies() {
    let mut world = World::new(64);
    let (controller, namespace) = world.open();
    assert_eq!(namespace.size_bytes(), 64 * 512);
    assert_eq!(namespace.info().uuid, Some([7; 16]));
    let limits = controller.limits().unwrap();
    assert_eq!((limits.io_queues, limits.max_transfer_bytes), (1, 128 << 10));
    let listing = controller.active_namespaces();
    assert_eq!(world.run(listing).unwrap(), [nvme_proto::Nsid(1)]);
}

#[test]
fn namespaces_are_opened_beside_each_other() {
    let mut world = World::new(64);
    *world.fake.active = NamespaceList::new((1..=300).map(Nsid));
    let controller = world.connect().unwrap();
    let opening = controller.namespaces();
    let all = world.run(opening).unwrap();
    assert!(all.iter().map(Namespace::nsid).eq((1..=300).map(Nsid)));
    // One that answers nothing is asked for 16 of them, not one.
    let is_identify = |seen: &Seen| {
        let is_admin = seen.qid.is_admin() && seen.sqe.opcode == AdminOpcode::IDENTIFY.0;
        is_admin && seen.sqe.cdw10.get() & 0xFF == u32::from(Cns::NAMESPACE.0)
    };
    world.fake.script = Box::new(move |seen| match is_identify(seen) {
        true => Action::Ignore,
        false => Action::Normal,
    });
    let before = world.fake.seen.iter().filter(|seen| is_identify(seen)).count();
    let opening = pin!(controller.namespaces());
    assert!(world.run_within(opening, Duration::from_secs(1)).is_none());
    let asked = world.fake.seen.iter().filter(|seen| is_identify(seen)).count() - before;
    assert_eq!(asked, 16);
}

#[test]
fn reads_any_range_exactly() {
    for grant in [Grant::Persistent, Grant::PerCommand] {
        let mut world = World::new(1024);
        let (_controller, namespace) = world.open();
        let end = 1024 * 512;
        for (offset, length) in [
            (0, 512),
            (0, 1),
            (1, 1),
            (511, 2),
            (512, 512),
            (100, 40_000),
            (0, 300_000),
            (7, 300_000),
            (512, 262_144),
            (end - 1, 1),
            (end - 70_001, 70_001),
            (0, end),
        ] {
            let outcome = world.read(&namespace, offset as u64, length, grant);
            outcome.result.unwrap();
            assert!(outcome.slice.bytes()[..] == expected(offset, length)[..], "{offset} {length}");
        }
    }
}

#[test]
fn ranges_are_checked_against_the_size() {
    let mut world = World::new(8);
    let (_controller, namespace) = world.open();
    world.read(&namespace, 4096, 0, Grant::Persistent).result.unwrap();
    for (offset, length) in [(4096, 1), (4095, 2), (u64::MAX, 1), (u64::MAX, 0), (4097, 0)] {
        let error = world.read(&namespace, offset, length, Grant::Persistent).result.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfRange { size_bytes: 4096 }), "{error}");
    }
}

#[test]
fn the_exact_length_bounds_the_namespace() {
    let mut world = World::new(8);
    set_file(&mut world.fake.namespace, 7 * 512 + 13, "shard-00001.tar");
    let (_controller, namespace) = world.open();
    assert_eq!(namespace.size_bytes(), 7 * 512 + 13);
    assert_eq!(namespace.info().name.as_deref(), Some("shard-00001.tar"));
    let outcome = world.read(&namespace, 0, 7 * 512 + 13, Grant::Persistent);
    outcome.result.unwrap();
    assert_eq!(outcome.slice.bytes()[..], expected(0, 7 * 512 + 13)[..]);
    let outcome = world.read(&namespace, 7 * 512, 14, Grant::Persistent);
    assert!(matches!(outcome.result.unwrap_err().kind(), ErrorKind::OutOfRange { .. }));
}

#[test]
fn a_length_that_misfits_the_blocks_is_ignored() {
    let mut world = World::new(8);
    set_file(&mut world.fake.namespace, 9 * 512, "liar");
    let (_controller, namespace) = world.open();
    assert_eq!((namespace.size_bytes(), namespace.info().name.as_deref()), (8 * 512, None));
}

#[test]
fn a_batch_has_its_results_in_order() {
    let mut world = World::new(1024);
    let (_controller, namespace) = world.open();
    let samples = RegionSlice::allocate(200 * 1000, Grant::Persistent).unwrap().chunks(1000);
    let ranges: Vec<_> = samples
        .enumerate()
        .map(|(i, into)| {
            let offset = if i == 77 { 1 << 30 } else { i as u64 * 2003 };
            read_range(&namespace, offset, into)
        })
        .collect();
    let reading = world.host.read_many(ranges);
    let outcomes = world.run(reading);
    assert_eq!(outcomes.len(), 200);
    for (i, outcome) in outcomes.iter().enumerate() {
        assert_eq!(outcome.result.is_ok(), i != 77);
        if i != 77 {
            assert_eq!(outcome.slice.bytes()[..], expected(i * 2003, 1000)[..]);
        }
    }
}

#[test]
fn slices_come_back_in_one_piece() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    let whole = RegionSlice::allocate(8192, Grant::Persistent).unwrap();
    let ranges: Vec<_> = whole
        .chunks(1024)
        .enumerate()
        .map(|(i, s)| read_range(&namespace, i as u64 * 1024, s))
        .collect();
    let reading = world.host.read_many(ranges);
    let slices = world.run(reading).into_iter().map(|outcome| outcome.slice);
    let whole = slices.reduce(|a, b| a.join(b).unwrap()).unwrap();
    assert_eq!(whole.to_vec(), expected(0, 8192));
}

#[test]
fn writes_any_range_and_nothing_else() {
    let mut world = World::new(1024);
    let (_controller, namespace) = world.open();
    let mut model = world.fake.disk();
    for (i, (offset, length)) in [
        (0, 512),
        (3, 5),
        (511, 2),
        (1000, 40_000),
        (512, 4096),
        (65_536, 200_000),
        (70_000, 300_001),
    ]
    .into_iter()
    .enumerate()
    {
        let bytes = vec![0x40 + i as u8; length];
        world.write(&namespace, offset as u64, &bytes).result.unwrap();
        model[offset..offset + length].copy_from_slice(&bytes);
        assert!(world.fake.disk()[..] == model[..], "{offset} {length}");
    }
}

#[test]
fn small_aligned_writes_go_with_the_command() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    world.write(&namespace, 0, &[1; 4096]).result.unwrap();
    world.write(&namespace, 4096, &[2; 4608]).result.unwrap();
    let with_data =
        world.fake.count(|seen| seen.sqe.opcode == NvmOpcode::WRITE.0 && seen.in_capsule == 4096);
    assert_eq!((with_data, world.host.counters().in_capsule_writes), (1, 1));
    assert!(world.fake.disk()[..4096] == [1; 4096] && world.fake.disk()[4096..8704] == [2; 4608]);
}

/// A capsule of two packets is quick and expensive: of many concurrent writes all but a few have
/// their data fetched. Shorter ones fit a packet, and long ones are no train either way.
#[test]
fn few_of_many_writes_exceed_a_packet() {
    for (length, with_the_command) in [(512, 40), (1024, 16), (2048, 16), (4096, 40)] {
        let mut world = World::new(1024);
        let (_controller, namespace) = world.open();
        let written: Vec<u8> = (0..40 * length).map(|i| (i / length) as u8 + 1).collect();
        write_parts(&mut world, &namespace, 0, &written, length);
        assert_eq!(world.host.counters().in_capsule_writes, with_the_command);
        let fetched =
            world.fake.count(|seen| seen.sqe.opcode == NvmOpcode::WRITE.0 && seen.in_capsule == 0);
        assert_eq!(fetched as u64, 40 - with_the_command);
        assert!(world.fake.disk()[..40 * length] == written[..]);
    }
}

#[test]
fn writes_to_one_block_keep_each_other() {
    let mut world = World::new(64);
    let (_controller, namespace) = world.open();
    let written: Vec<u8> = (0..4000).map(|i| i as u8).collect();
    write_parts(&mut world, &namespace, 50, &written, 100);
    assert_eq!(world.fake.disk()[50..4050], written[..]);
    assert_eq!(world.fake.disk()[..50], expected(0, 50)[..]);
    assert_eq!(world.fake.disk()[4050..8192], expected(4050, 8192 - 4050)[..]);
}

/// Writes bytes from `offset` on in parts of this length, all together.
fn write_parts(world: &mut World, namespace: &Namespace, offset: u64, bytes: &[u8], length: usize) {
    let ranges: Vec<_> = RegionSlice::from_vec(bytes.to_vec(), Grant::Persistent)
        .chunks(length)
        .enumerate()
        .map(|(i, s)| write_range(namespace, offset + (i * length) as u64, s))
        .collect();
    let writing = world.host.write_many(ranges);
    for outcome in world.run(writing) {
        outcome.result.unwrap();
    }
}

/// Reads the first blocks of a namespace, all together.
fn read_blocks(world: &mut World, namespace: &Namespace, count: usize) {
    let ranges: Vec<_> = RegionSlice::allocate(count * 512, Grant::Persistent)
        .unwrap()
        .chunks(512)
        .enumerate()
        .map(|(i, s)| read_range(namespace, i as u64 * 512, s))
        .collect();
    let reading = world.host.read_many(ranges);
    assert!(world.run(reading).iter().all(|outcome| outcome.result.is_ok()));
}

#[test]
fn the_queue_size_bounds_commands_in_flight() {
    let mut world = World::new(1024);
    world.fake.crqsize = 3;
    let (controller, namespace) = world.open();
    assert_eq!(controller.limits().unwrap().queue_depth, 3);
    read_blocks(&mut world, &namespace, 64);
}

#[test]
fn slots_come_back_in_queues_of_any_size() {
    for (receives, commands) in
        [(1, 128), (2, 128), (5, 128), (33, 128), (128, 1), (128, 3), (128, 128)]
    {
        let mut world = World::new(1024);
        world.fake.crqsize = receives;
        world.fake.identify.maxcmd.set(commands);
        let (_controller, namespace) = world.open();
        // One at a time, more often than there are slots; then all that fit.
        for block in 0..300 {
            world.read(&namespace, block * 512, 512, Grant::Persistent).result.unwrap();
        }
        read_blocks(&mut world, &namespace, 256);
    }
}

#[test]
fn single_commands_reuse_their_slot() {
    let mut world = World::new(1024);
    let (_controller, namespace) = world.open();
    let before = world.fake.seen.len();
    for block in 0..300 {
        world.read(&namespace, block * 512, 512, Grant::Persistent).result.unwrap();
    }
    let reads = world.fake.seen[before..].iter().filter(|seen| !seen.qid.is_admin());
    // The lower ten bits of an identifier are the slot.
    let slots: BTreeSet<u16> = reads.map(|seen| seen.sqe.cid().0 % 1024).collect();
    // One whose SEND reports is taken until it does.
    assert!(slots.len() <= 2, "{slots:?}");
}

#[test]
fn an_idle_host_stays_connected() {
    let mut world = World::new(8);
    let (_controller, namespace) = world.open();
    world.pass(std::time::Duration::from_secs(50));
    let alive = world.fake.count(|seen| seen.sqe.opcode == AdminOpcode::KEEP_ALIVE.0);
    assert!((19..=21).contains(&alive), "{alive}");
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    assert_eq!((world.fake.connections, world.host.counters().connections_lost), (2, 0));
}

#[test]
fn the_last_handle_ends_the_connection() {
    let mut world = World::new(8);
    let (controller, namespace) = world.open();
    drop(controller);
    world.read(&namespace, 0, 512, Grant::Persistent).result.unwrap();
    drop(namespace);
    world.pass(std::time::Duration::from_secs(5));
    let shutdowns = world.fake.count(|seen| {
        seen.sqe.is_fabrics()
            && seen.sqe.fabrics_type() == nvme_proto::FabricsType::PROPERTY_SET
            && seen.sqe.cdw12.get() & 0xC000 == 0x4000
    });
    assert_eq!(shutdowns, 1);
    assert!(!world.fake.is_connected());
}

#[test]
fn several_queues_share_the_load() {
    let options = feedrail_initiator::ControllerOptions::new().io_queues(4);
    let mut world = World::with(1, Default::default(), 1024, options);
    let (_controller, namespace) = world.open();
    for i in 0..64 {
        world.read(&namespace, i * 512, 512, Grant::Persistent).result.unwrap();
    }
    for qid in 1..=4 {
        let share = world.fake.count(|seen| {
            seen.qid.0 == qid && seen.sqe.opcode == NvmOpcode::READ.0 && !seen.sqe.is_fabrics()
        });
        assert_eq!(share, 16);
    }
}

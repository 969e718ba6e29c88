//! No CPU touches payload: what the target is given to write to and to read from is the caller's
//! memory.
//!
//! The initiator is the same code for every provider, and the target sees the same descriptors from
//! each: with verbs, the device moves the bytes.

use feedrail_initiator::{Grant, RegionSlice};
use nvme_proto::{NvmOpcode, Sgl};

use super::fake::pattern;
use super::world::World;

const BLOCKS: usize = 2048;
const BLOCK: usize = 512;

/// The addresses and lengths that I/O commands with an opcode named, in the order of the addresses.
fn named(world: &World, opcode: NvmOpcode) -> Vec<(u64, u64)> {
    let commands = world.fake.seen.iter();
    let mut named: Vec<_> = commands
        .filter(|seen| !seen.qid.is_admin() && seen.sqe.opcode == opcode.0)
        .map(|seen| match seen.sqe.dptr.parse() {
            Ok(Sgl::Keyed { address, length, .. }) => (address, u64::from(length)),
            other => panic!("not in the caller's memory: {other:?}"),
        })
        .collect();
    named.sort_unstable();
    named
}

/// Whether the pieces are the whole of the memory, without gaps.
fn assert_covers(slice: &RegionSlice, pieces: &[(u64, u64)]) {
    let mut next = slice.as_ptr() as u64;
    for &(address, length) in pieces {
        assert_eq!(address, next, "{pieces:x?}");
        next += length;
    }
    assert_eq!(next, slice.as_ptr() as u64 + slice.len() as u64, "{pieces:x?}");
}

#[test]
fn aligned_reads_name_the_callers_memory() {
    for (offset, length) in [(0, BLOCK), (7 * BLOCK, 40 * BLOCK), (0, BLOCKS * BLOCK)] {
        let mut world = World::new(BLOCKS);
        let (_controller, namespace) = world.open();
        let outcome = world.read(&namespace, offset as u64, length, Grant::Persistent);
        outcome.result.unwrap();
        assert!(
            outcome.slice.bytes().iter().enumerate().all(|(i, &byte)| byte == pattern(offset + i))
        );
        assert_covers(&outcome.slice, &named(&world, NvmOpcode::READ));
        let counters = world.host.counters();
        assert_eq!((counters.bounced_steps, counters.direct_bytes), (0, length as u64));
    }
}

#[test]
fn aligned_writes_name_the_callers_memory() {
    for (offset, length) in [(0, 64 * BLOCK), (9 * BLOCK, 1000 * BLOCK)] {
        let mut world = World::new(BLOCKS);
        let (_controller, namespace) = world.open();
        let bytes: Vec<u8> = (0..length).map(|at| pattern(at + 77)).collect();
        let outcome = world.write(&namespace, offset as u64, &bytes);
        outcome.result.unwrap();
        assert!(world.fake.disk()[offset..offset + length] == bytes);
        assert_covers(&outcome.slice, &named(&world, NvmOpcode::WRITE));
        let counters = world.host.counters();
        assert_eq!((counters.bounced_steps, counters.direct_bytes), (0, length as u64));
    }
}

/// Only the partial blocks at the ends of a long range are copied.
#[test]
fn inner_blocks_of_a_range_are_not_copied() {
    let mut world = World::new(BLOCKS);
    let (_controller, namespace) = world.open();
    let (offset, length) = (100, 400 * BLOCK);
    let outcome = world.read(&namespace, offset as u64, length, Grant::Persistent);
    outcome.result.unwrap();
    assert!(outcome.slice.bytes().iter().enumerate().all(|(i, &byte)| byte == pattern(offset + i)));
    let start = outcome.slice.as_ptr() as u64;
    let inside: Vec<_> = (named(&world, NvmOpcode::READ).into_iter())
        .filter(|&(address, _)| (start..start + length as u64).contains(&address))
        .collect();
    assert_eq!(inside[0].0, start + (BLOCK - offset) as u64);
    assert_eq!(inside.iter().map(|&(_, length)| length).sum::<u64>(), 399 * BLOCK as u64);
    let counters = world.host.counters();
    assert_eq!((counters.bounced_bytes, counters.direct_bytes), (512, 399 * BLOCK as u64));
}

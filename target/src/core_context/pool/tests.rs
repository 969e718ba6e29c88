//! Pools of a plan, and allocation of buffers.

use proptest::prelude::*;

use super::*;

const BLOCK: usize = 64 * 1024;

fn pool(blocks: usize) -> Pool {
    Pool::new(PoolMemory::new(blocks * BLOCK, 0).unwrap(), 0, blocks, BLOCK)
}

#[test]
fn pools_of_a_plan_lie_side_by_side() {
    let plan = PoolPlan::new(4 * BLOCK as u64, 2, BLOCK);
    let memory = PoolMemory::new(plan.memory_bytes(), 0).unwrap();
    let (first, first_anonymous) = plan.pools(&memory, 0);
    let (second, second_anonymous) = plan.pools(&memory, 1);
    let mut end = memory.address() as usize;
    for pool in [first, second, first_anonymous, second_anonymous] {
        let (start, length) = pool.range();
        assert_eq!(start as usize, end);
        end += length;
    }
    assert_eq!(end, memory.address() as usize + memory.length);
}

#[test]
fn pools_know_their_buffers_and_find_others() {
    let plan = PoolPlan::new(4 * BLOCK as u64, 1, BLOCK);
    let memory = PoolMemory::new(plan.memory_bytes(), 0).unwrap();
    let (mut hosts, mut anonymous) = plan.pools(&memory, 0);
    let (large, small) = (hosts.allocate(4096).unwrap(), anonymous.allocate(4096).unwrap());
    assert!(hosts.owns(&large) && !hosts.owns(&small));
    assert!(anonymous.owns(&small) && !anonymous.owns(&large));
    assert_eq!(hosts.address(&small), anonymous.address(&small));
    hosts.release(large);
    anonymous.release(small);
}

#[test]
fn zeros_lie_behind_the_pool() {
    let memory = PoolMemory::new(BLOCK + 1, 5000).unwrap();
    let zeros = memory.zeros(8192);
    assert_eq!(zeros as usize, memory.address() as usize + memory.length);
    assert_eq!(memory.registered_length(), memory.length + 8192);
    // SAFETY: mapped with the memory, which lives on, and never written.
    let zeros = unsafe { std::slice::from_raw_parts(zeros, 8192) };
    assert!(zeros.iter().all(|byte| *byte == 0));
}

#[test]
fn a_plan_gives_every_core_enough_blocks() {
    assert_eq!(PoolPlan::new(1, 3, BLOCK).host_bytes(), 6 * BLOCK);
    assert_eq!(PoolPlan::new(7 * BLOCK as u64, 3, BLOCK).host_bytes(), 9 * BLOCK);
}

#[test]
fn small_buffers_leave_room_for_large_ones() {
    let mut pool = pool(1);
    let mut buffers: Vec<_> = (0..16).map(|_| pool.allocate(4096).unwrap()).collect();
    assert!(pool.allocate(1).is_none());
    buffers.drain(..).for_each(|buffer| pool.release(buffer));
    let whole = pool.allocate(BLOCK as u32).unwrap();
    assert_eq!(pool.free_bytes(), 0);
    pool.release(whole);
}

#[test]
fn more_than_a_block_is_never_available() {
    assert!(pool(4).allocate(BLOCK as u32 + 1).is_none());
}

proptest! {
    #[test]
    fn live_buffers_are_disjoint_aligned_and_all_memory_comes_back(
        steps in prop::collection::vec((1u32..=BLOCK as u32, any::<bool>(), any::<prop::sample::Index>()), 1..200)
    ) {
        let mut pool = pool(4);
        let (base, total) = pool.range();
        let mut live: Vec<Buffer> = Vec::new();
        for (length, free, index) in steps {
            if free && !live.is_empty() {
                let buffer = live.swap_remove(index.index(live.len()));
                pool.release(buffer);
            } else if let Some(buffer) = pool.allocate(length) {
                live.push(buffer);
            }
            let mut ranges: Vec<_> = live
                .iter()
                .map(|b| (pool.address(b) as usize, b.length as usize))
                .collect();
            ranges.sort_unstable();
            for pair in ranges.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
            }
            for (address, length) in ranges {
                prop_assert_eq!(address % UNIT_BYTES, 0);
                prop_assert!(address >= base as usize && address + length <= base as usize + total);
            }
        }
        for buffer in live {
            pool.release(buffer);
        }
        prop_assert_eq!(pool.free_bytes(), pool.total_bytes());
        for _ in 0..4 {
            prop_assert!(pool.allocate(BLOCK as u32).is_some());
        }
    }
}

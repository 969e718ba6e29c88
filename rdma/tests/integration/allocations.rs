//! The data path does not allocate.
#![expect(
    unsafe_code,
    reason = "a counting allocator, and work requests that name memory by address"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rdma::{Group, Op, Provider, RecvWr, SendFlags, SendWr, Sge, Wc};

use crate::conformance::benches::SoftBench;
use crate::conformance::world::{Bench, World};

thread_local! {
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

struct Counting;

// SAFETY: hands every call on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNTED.with(|counted| counted.set(counted.get().map(|count| count + 1)));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How often `work` allocates.
fn allocations(work: impl FnOnce()) -> u64 {
    COUNTED.with(|counted| counted.set(Some(0)));
    work();
    COUNTED.with(|counted| counted.take()).expect("was counting")
}

type SoftGroup = <rdma::soft::Soft as Provider>::Group;

/// Polls both groups until `wanted` completions came.
fn reap(groups: [&mut SoftGroup; 2], bench: &SoftBench, wanted: usize) {
    let mut seen = 0;
    let mut wcs = [Wc::default(); 32];
    let [left, right] = groups;
    while seen < wanted {
        for group in [&mut *left, &mut *right] {
            let count = group.poll(bench.now(), &mut wcs);
            assert!(wcs[..count].iter().all(Wc::is_success));
            seen += count;
        }
    }
}

#[test]
fn nothing_is_allocated_per_operation() {
    let mut world = World::new(SoftBench::new());
    let (left, right) = world.connect();
    let [ours, theirs] = [world.buffer(0, 1 << 20), world.buffer(1, 1 << 20)];
    let (sge, reply): (Sge, Sge) = (ours.sge(0, 1 << 17), ours.sge(1 << 19, 64));
    let (remote_addr, rkey) = (theirs.addr(), theirs.rkey());
    let receive = theirs.sge(1 << 18, 64);
    let World { hosts, bench } = &mut world;
    let [host, peer] = &mut hosts[..] else { unreachable!("two hosts") };
    let (group, other) = (&mut host.group, &mut peer.group);
    let mut round = || {
        let ops = [
            (Op::RdmaWrite { remote_addr, rkey }, sge),
            (Op::RdmaRead { remote_addr, rkey }, sge),
            (Op::Send, reply),
        ];
        // SAFETY: the buffers live until the end of the test.
        unsafe { other.push_recv(right.qp, &RecvWr { wr_id: 1, sges: &[receive] }) }.expect("room");
        for (op, sge) in ops {
            let wr = SendWr { wr_id: 2, op, flags: SendFlags::SIGNALED, sges: &[sge] };
            // SAFETY: the buffers live until the end of the test.
            unsafe { group.push_send(left.qp, &wr) }.expect("room");
        }
        group.flush(bench.now());
        reap([&mut *group, &mut *other], bench, 4);
    };
    (0..50).for_each(|_| round());
    let count = allocations(|| (0..500).for_each(|_| round()));
    assert_eq!(count, 0, "allocations in 2,000 operations");
}

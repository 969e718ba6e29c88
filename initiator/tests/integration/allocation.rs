//! Once a ring was filled, nothing is allocated for a range, nor for a range of a plan; and a host
//! leaves nothing behind.
#![expect(unsafe_code, reason = "counts allocations")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};

use feedrail_initiator::{
    Entry, Grant, Host, Nsid, RangeCompletion, Region, RegionSlice, Ring, Shards, Submit,
    SubsystemAddress as Subsystem,
};
use feedrail_target::Target;
use feedrail_target::config::{Cores, ProviderChoice};
use feedrail_target::{Config, Quick};
use rusty_fork::rusty_fork_test;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is handed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Keeps the ring full for `rounds` ranges; whole blocks and parts of blocks in turn.
fn run(
    ring: &mut Ring,
    namespace: &feedrail_initiator::Namespace,
    idle: &mut Vec<RegionSlice>,
    done: &mut Vec<RangeCompletion>,
    rounds: u64,
) {
    let mut submitted = 0;
    let mut completed = 0;
    while completed < rounds {
        while submitted < rounds
            && let Some(slice) = idle.pop()
        {
            let offset = (submitted % 100) * 4096 + (submitted % 2) * 77;
            ring.read(namespace, offset, slice, submitted).unwrap();
            submitted += 1;
        }
        ring.wait(1, None, done);
        for completion in done.drain(..) {
            completion.result.unwrap();
            idle.push(completion.slice);
            completed += 1;
        }
    }
}

/// A plan has its own memory, whatever its length.
fn assert_plans_allocate_little(at: Subsystem) {
    let host = Host::new().unwrap();
    let namespace = host.connect(at).wait().unwrap().namespace(Nsid(1)).wait().unwrap();
    let shards = Shards::new([namespace]).unwrap();
    let region = Region::allocate(480 * 2050, Grant::Persistent).unwrap();
    let entry = |i: u64| Entry { shard: 0, length: 2050, offset: i * 2003, dst: i * 2050 };
    for rows in [480, 10] {
        // Also with gaps between the destinations.
        for step in [1, 2] {
            let plan: Vec<_> = (0..rows).step_by(step).map(entry).collect();
            let read = |times: u64| {
                for _ in 0..times {
                    let ticket = host.submit(&shards, &plan, &region, Submit::default()).unwrap();
                    assert_eq!(ticket.wait(plan.len(), None).done, plan.len());
                }
            };
            read(20);
            let before = ALLOCATIONS.get();
            read(100);
            let allocated = ALLOCATIONS.get() - before;
            assert!(allocated < 100 * 24, "{allocated} for 100 plans of {}", plan.len());
        }
    }
}

rusty_fork_test! {
    #[test]
    fn a_range_allocates_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let [a, b, c, ..] = *uuid::Uuid::new_v4().as_bytes();
        let ip: IpAddr = [127, a.clamp(1, 254), b, c.clamp(2, 254)].into();
        let at = Subsystem {
            address: SocketAddr::new(ip, 4420),
            nqn: "nqn.2026-01.io.feedrail:files".parse().unwrap(),
        };
        let config = Config::quick(Quick {
            listen: vec![at.address],
            paths: vec![file.path().to_owned()],
            writable: false,
            direct_io: Default::default(),
            nqn: Some(at.nqn),
            machine: None,
            provider: ProviderChoice::Soft,
            cores: Cores::Count(1),
        });
        let _target = Target::start(&config.unwrap()).unwrap();
        for grant in [Grant::Persistent, Grant::PerCommand] {
            let host = Host::builder().io_queues(2).build().unwrap();
            let namespace = host.connect(at).wait().unwrap().namespace(Nsid(1)).wait().unwrap();
            let memory = RegionSlice::allocate(32 * 4096, grant).unwrap();
            let mut idle: Vec<_> = memory.chunks(4096).collect();
            let mut done = Vec::with_capacity(64);
            let mut ring = host.ring(32);
            run(&mut ring, &namespace, &mut idle, &mut done, 3_000);
            let before = ALLOCATIONS.get();
            run(&mut ring, &namespace, &mut idle, &mut done, 1_000);
            let allocated = ALLOCATIONS.get() - before;
            assert!(allocated < 20, "{allocated} allocations for 1,000 ranges, {grant:?}");
        }
        assert_plans_allocate_little(at);
        let before = descriptors();
        for _ in 0..10 {
            let host = Host::new().unwrap();
            let namespace = host.connect(at).wait().unwrap().namespace(Nsid(1)).wait().unwrap();
            assert_eq!(namespace.read_to_vec(1, 3).wait().unwrap(), [0; 3]);
        }
        assert_eq!(descriptors(), before, "hosts leave descriptors behind");
    }
}

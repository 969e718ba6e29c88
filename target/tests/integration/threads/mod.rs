//! A target with its threads and io_uring, reached over UDP.
#![expect(unsafe_code, reason = "counts allocations")]

mod link;

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use feedrail_target::Target;

use link::Link;
use rusty_fork::rusty_fork_test;

/// Allocator that counts the allocations of one thread.
struct Counting;

static THREAD: AtomicI32 = AtomicI32::new(0);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

impl Counting {
    fn count() {
        let thread = THREAD.load(Ordering::Relaxed);
        // SAFETY: only asks for a number.
        if thread != 0 && thread == unsafe { libc::gettid() } {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Thread of this process with a name.
fn thread(name: &str) -> i32 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let found = tasks.into_iter().find(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
    });
    found.unwrap().file_name().to_str().unwrap().parse().unwrap()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn start(address: &str, path: &Path) -> Target {
    let toml = format!(
        "provider = \"soft\"\ncores = 1\n[[port]]\naddress = \"{address}:4420\"\n\
         [[subsystem]]\nnqn = \"{}\"\nallow_any_host = true\n\
         [[subsystem.namespace]]\npath = \"{}\"\nread_only = false\nrw_ios_per_sec = 1000\n",
        link::NQN,
        path.display()
    );
    let config = feedrail_target::Config::from_toml(Path::new("test.toml"), &toml).unwrap();
    Target::start(&config).unwrap()
}

rusty_fork_test! {
    /// One test, since the allocator and the clock are the process's.
    #[test]
    fn io_allocates_nothing_and_an_idle_target_sleeps() {
        let bytes = pattern(1 << 20);
        let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&bytes).unwrap();
        let address = link::random_loopback();
        let target = start(&address, file.path());
        let mut link = Link::new(target.listening()[0].address);
        THREAD.store(thread("feedrail-0"), Ordering::Relaxed);
        link.associate();
        assert_ne!(ALLOCATIONS.load(Ordering::Relaxed), 0, "a new connection allocates");
        THREAD.store(0, Ordering::Relaxed);

        let mut held = bytes;
        for (slba, length) in [(0u64, 4096usize), (8, 512), (16, 65_536), (1024, 4096)] {
            let fresh: Vec<u8> = pattern(length).iter().map(|byte| byte ^ 0x55).collect();
            link.write(slba, &fresh);
            held[slba as usize * 512..][..length].copy_from_slice(&fresh);
        }
        for round in 0..200u64 {
            let slba = round * 37 % 1900;
            assert!(link.read(slba, 65_536) == held[slba as usize * 512..][..65_536], "{round}");
            link.write(slba, &held[slba as usize * 512..][..4096]);
        }
        link.flush();
        assert!(std::fs::read(file.path()).unwrap() == held);

        let before = target.stats();
        ALLOCATIONS.store(0, Ordering::Relaxed);
        THREAD.store(thread("feedrail-0"), Ordering::Relaxed);
        for round in 0..500u64 {
            link.read(round, 4096);
            link.write(round, &held[round as usize * 512..][..4096]);
            link.read(round, 65_536);
        }
        let allocations = ALLOCATIONS.load(Ordering::Relaxed);
        THREAD.store(0, Ordering::Relaxed);
        assert_eq!(allocations, 0, "in 1,500 commands that wait for their quota");
        let after = target.stats();
        assert_eq!(after.io.reads - before.io.reads, 1000);
        assert_eq!(after.io.writes - before.io.writes, 500);
        assert_eq!(after.system_calls.file, 0);

        let idle = target.stats().system_calls;
        link.idle(Duration::from_secs(2));
        let idle_after = target.stats().system_calls;
        let woken = idle_after.uring_wait - idle.uring_wait;
        assert!(woken < 100, "woken {woken} times in two idle seconds");
        target.drain(Duration::from_secs(5));
    }
}

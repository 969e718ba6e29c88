//! A process that reads is forked, as data loaders do.
#![expect(unsafe_code, reason = "forks")]

use std::fs;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};

use feedrail_initiator::{
    Entry, ErrorKind, Grant, Host, Namespace, Outcome, PlanError, RdmaProvider, ReadRange, Region,
    Shards, Submit,
};
use feedrail_tests::process::{Bytes, Daemon, empty_slice, host as test_host};
use nvme_proto::Nsid;
use rusty_fork::rusty_fork_test;

const SIZE_BYTES: usize = 1 << 20;
const RANGE_BYTES: usize = 4_000;

struct Scene {
    daemon: Daemon,
    content: Vec<u8>,
    _folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard.bin");
        let content = Bytes::new(6).take(SIZE_BYTES);
        fs::write(&path, &content).unwrap();
        Self { daemon: Daemon::serving([path]), content, _folder: folder }
    }

    /// Reads `count` ranges concurrently, and checks their bytes.
    fn read(&self, host: &Host, namespace: &Namespace, count: usize) {
        let offset = |i: usize| i * 7_919 % (SIZE_BYTES - RANGE_BYTES);
        for (i, outcome) in host.read_many(ranges(namespace, count)).wait().iter().enumerate() {
            outcome.result.as_ref().unwrap();
            assert!(
                outcome.slice.bytes()[..] == self.content[offset(i)..][..RANGE_BYTES],
                "range {i}"
            );
        }
    }
}

fn ranges(namespace: &Namespace, count: usize) -> impl Iterator<Item = ReadRange> {
    (0..count).map(|i| ReadRange {
        namespace: namespace.clone(),
        offset: (i * 7_919 % (SIZE_BYTES - RANGE_BYTES)) as u64,
        into: empty_slice(RANGE_BYTES),
    })
}

/// A process that was forked.
struct Child(libc::pid_t);

impl Child {
    /// Runs `work` in a child, which is killed if it takes minutes.
    fn run(work: impl FnOnce()) -> Self {
        // SAFETY: the child uses only its memory, the allocator, and system calls, which work after
        // a fork.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: asks for a signal.
            unsafe { libc::alarm(120) };
            let outcome = panic::catch_unwind(AssertUnwindSafe(work));
            if let Err(panic) = &outcome {
                // The harness would keep it in memory that goes with the child.
                let said = panic.downcast_ref::<String>().map_or("", String::as_str);
                let _ = writeln!(std::io::stderr(), "in the child: {said}");
            }
            // SAFETY: ends the process, and nothing else.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        Self(child)
    }

    fn succeeds(self) {
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!((waited, status), (self.0, 0), "the child failed, or hung until it was killed");
    }
}

fn assert_forked<T>(result: Result<T, feedrail_initiator::Error>) {
    let Err(error) = result else { panic!("it succeeds in a child") };
    assert!(matches!(error.kind(), ErrorKind::Forked), "{error}");
    assert!(error.to_string().contains("open a new Host"), "{error}");
}

/// Every call that a child may try with inherited objects.
fn use_all(scene: &Scene, inherited: &Host, namespace: &Namespace) {
    for outcome in inherited.read_many(ranges(namespace, 10)).wait() {
        assert_eq!(outcome.slice.len(), RANGE_BYTES);
        assert_forked(outcome.result);
    }
    assert_forked(namespace.read_to_vec(0, 10).wait());
    assert_forked(namespace.write(0, empty_slice(512)).wait().result);
    assert_forked(namespace.flush().wait());
    assert_forked(inherited.connect(scene.daemon.target()).wait());
    assert_forked(inherited.discover(scene.daemon.address()).wait());
    assert_forked(inherited.register(&empty_slice(10)));
    assert_eq!(inherited.counters(), Default::default());
    let mut ring = inherited.ring(2);
    let mut done = Vec::new();
    for token in 0..2 {
        ring.read(namespace, 0, empty_slice(10), token).unwrap();
    }
    drop(ring.read(namespace, 0, empty_slice(10), 2).unwrap_err());
    assert_eq!(ring.wait(2, None, &mut done), 2);
    assert_eq!(ring.wait(1, None, &mut done), 0);
    done.into_iter().for_each(|completion| assert_forked(completion.result));
}

rusty_fork_test! {
    #[test]
    fn a_child_cannot_use_inherited_objects() {
        let scene = Scene::new();
        let host = test_host().build().unwrap();
        let controller = scene.daemon.connect(&host);
        let namespace = controller.namespace(Nsid(1)).wait().unwrap();
        let mut ring = host.ring(4);
        ring.read(&namespace, 0, empty_slice(10), 0).unwrap();
        ring.submit();
        let reading = host.read_many(ranges(&namespace, 50));
        let mut begun = Some((ring, reading, controller.identify()));
        let mut inherited = Some((host.clone(), controller, namespace.clone()));
        let child = Child::run(|| {
            let (mut ring, reading, identify) = begun.take().unwrap();
            let (host, controller, namespace) = inherited.take().unwrap();
            use_all(&scene, &host, &namespace);
            assert_forked(controller.limits());
            assert_forked(controller.namespace(Nsid(1)).wait());
            assert_eq!(ring.wait(1, None, &mut Vec::new()), 0);
            reading.wait().into_iter().for_each(|outcome| assert_forked(outcome.result));
            assert_forked(identify.wait());
        });
        scene.read(&host, &namespace, 100);
        child.succeeds();
        let (mut ring, reading, identify) = begun.unwrap();
        assert_eq!(ring.wait(1, None, &mut Vec::new()), 1);
        assert!(reading.wait().iter().all(|outcome| outcome.result.is_ok()));
        identify.wait().unwrap();
        assert_eq!(host.counters().connections_lost, 0);
        assert_eq!(scene.daemon.stats()["connections"], 2);
    }
}

rusty_fork_test! {
    #[test]
    fn children_open_hosts_of_their_own() {
        let scene = Scene::new();
        let host = test_host().build().unwrap();
        let namespace = scene.daemon.open(&host);
        let memory = empty_slice(RANGE_BYTES);
        host.register(&memory).unwrap();
        let mut inherited = Some((memory, namespace.clone(), host.clone()));
        for _ in 0..20 {
            let child = Child::run(|| {
                let own = test_host().build().unwrap();
                let opened = scene.daemon.open(&own);
                scene.read(&own, &opened, 100);
                // Memory that the parent had registered.
                let (memory, namespace, host) = inherited.take().unwrap();
                let outcome = opened.read(1_000, memory).wait();
                outcome.result.unwrap();
                assert!(outcome.slice.bytes()[..] == scene.content[1_000..][..RANGE_BYTES]);
                drop((namespace, host));
                scene.read(&own, &opened, 100);
            });
            scene.read(&host, &namespace, 100);
            child.succeeds();
        }
        assert_eq!(host.counters().connections_lost, 0);
    }
}

rusty_fork_test! {
    #[test]
    fn a_child_drops_inherited_objects_without_packets() {
        drop_inherited_objects(RdmaProvider::Soft);
    }
}

rusty_fork_test! {
    #[test]
    fn a_child_drops_inherited_objects_without_messages_in_shared_memory() {
        drop_inherited_objects(RdmaProvider::Shm);
    }
}

fn drop_inherited_objects(provider: RdmaProvider) {
    let scene = Scene::new();
    let host = test_host().provider(provider).build().unwrap();
    let namespace = scene.daemon.open(&host);
    let polled = test_host().provider(provider).polled().build().unwrap();
    let other = scene.daemon.open(&polled);
    let mut inherited = Some((namespace.clone(), host.clone(), other.clone(), polled.clone()));
    for _ in 0..20 {
        Child::run(|| drop(inherited.take())).succeeds();
        scene.read(&host, &namespace, 10);
        scene.read(&polled, &other, 10);
    }
    let lost = host.counters().connections_lost + polled.counters().connections_lost;
    assert_eq!((lost, &scene.daemon.stats()["connections"]), (0, &4.into()));
}

fn plan() -> Vec<Entry> {
    let length = RANGE_BYTES as u32;
    (0..50).map(|i| Entry { shard: 0, length, offset: i * 7_919, dst: i * 4_000 }).collect()
}

/// Says in a file that it was dropped, in which process ever.
struct MarksDrop(std::path::PathBuf);

impl Drop for MarksDrop {
    fn drop(&mut self) {
        let file = fs::OpenOptions::new().append(true).create(true).open(&self.0);
        writeln!(file.unwrap(), "{}", std::process::id()).unwrap();
    }
}

rusty_fork_test! {
    #[test]
    fn a_child_neither_reads_plans_nor_frees_regions() {
        let scene = Scene::new();
        let host = test_host().build().unwrap();
        let shards = Shards::new([scene.daemon.open(&host)]).unwrap();
        let marks = scene._folder.path().join("drops");
        let memory = Box::leak(vec![0u8; 50 * RANGE_BYTES].into_boxed_slice());
        let address = std::ptr::NonNull::from(memory).cast();
        let owner = Box::new(MarksDrop(marks.clone()));
        // SAFETY: the memory is never freed, and used through the region only.
        let region = unsafe { Region::from_raw(address, 50 * RANGE_BYTES, Grant::Persistent, owner) };
        let ticket = host.submit(&shards, &plan(), &region, Submit::default()).unwrap();
        let mut begun = Some((ticket, region, shards, host));
        let child = Child::run(|| {
            let (ticket, region, shards, host) = begun.take().unwrap();
            let refused = host.submit(&shards, &plan(), &region, Submit::default()).unwrap_err();
            assert!(matches!(&refused, PlanError::Host(error) if is_forked(error)), "{refused}");
            assert!(ticket.wait(50, None).is_done() && ticket.is_done());
            assert_eq!(ticket.cancel(), 0);
            for (i, outcome) in ticket.outcomes().enumerate() {
                let error = ticket.error(i);
                assert_eq!(outcome.is_ok(), error.is_none());
                assert!(outcome.is_ok() || outcome.status == Outcome::FORKED);
                assert!(error.is_none_or(|error| is_forked(&error)));
            }
            assert!(region.is_in_flight() && region.copy_out(0, &mut [0]).is_err());
            drop((ticket, region, shards, host));
        });
        child.succeeds();
        assert!(!marks.exists(), "the child dropped the owner of the parent's memory");
        let (ticket, region, shards, host) = begun.unwrap();
        let progress = ticket.wait(50, None);
        assert_eq!((progress.done, progress.failed), (50, 0));
        let mut bytes = vec![0; RANGE_BYTES];
        for entry in plan() {
            region.copy_out(entry.dst as usize, &mut bytes).unwrap();
            assert!(bytes[..] == scene.content[entry.offset as usize..][..RANGE_BYTES]);
        }
        drop((ticket, region, shards, host));
        assert_eq!(fs::read_to_string(&marks).unwrap(), format!("{}\n", std::process::id()));
    }
}

fn is_forked(error: &feedrail_initiator::Error) -> bool {
    matches!(error.kind(), ErrorKind::Forked)
}

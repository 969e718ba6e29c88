//! Plans against the real target, over UDP sockets of one machine.
#![expect(unsafe_code, reason = "a region of foreign memory")]

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use feedrail_initiator::{
    Class, Entry, Grant, Host, Nsid, Outcome, PlanError, Region, Shards, Submit, SubsystemAddress,
};
use feedrail_target::config::{Cores, ProviderChoice};
use feedrail_target::{Config, Quick, Target};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

/// Bytes with a pattern at the beginning of the file; the rest is a hole.
const PATTERN_BYTES: u64 = 4 << 20;

struct Served {
    host: Host,
    shards: Shards,
    at: SubsystemAddress,
    _target: Target,
    _file: tempfile::NamedTempFile,
}

fn pattern(at: u64) -> u8 {
    (at ^ (at >> 8).wrapping_mul(31) ^ (at >> 16).wrapping_mul(17)) as u8
}

impl Served {
    fn start(size_bytes: u64) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let bytes: Vec<u8> = (0..PATTERN_BYTES).map(pattern).collect();
        file.write_all(&bytes).unwrap();
        file.as_file().set_len(size_bytes).unwrap();
        let [a, b, c, ..] = *uuid::Uuid::new_v4().as_bytes();
        let ip: IpAddr = [127, a.clamp(1, 254), b, c.clamp(2, 254)].into();
        let nqn = "nqn.2026-01.io.feedrail:files".parse().unwrap();
        let at = SubsystemAddress { address: SocketAddr::new(ip, 4420), nqn };
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
        let target = Target::start(&config.unwrap()).unwrap();
        let host = Host::new().unwrap();
        let namespace = host.connect(at).wait().unwrap().namespace(Nsid(1)).wait().unwrap();
        Self { host, shards: Shards::new([namespace]).unwrap(), at, _target: target, _file: file }
    }
}

/// Rows of 2,050 bytes at odd places, one behind the other in the region from `dst` on.
fn rows(count: u64, dst: u64) -> Vec<Entry> {
    let offset = |i| i * 7919 % (PATTERN_BYTES - 2050);
    let entry = |i| Entry { shard: 0, length: 2050, offset: offset(i), dst: dst + i * 2050 };
    (0..count).map(entry).collect()
}

#[track_caller]
fn check(region: &Region, plan: &[Entry]) {
    let mut bytes = vec![0; 2050];
    for entry in plan {
        region.copy_out(entry.dst as usize, &mut bytes).unwrap();
        let expected = (entry.offset..).map(pattern);
        assert!(bytes.iter().copied().eq(expected.take(2050)), "{entry:?}");
    }
}

#[test]
fn threads_share_a_region_and_a_ticket() {
    let served = Served::start(PATTERN_BYTES);
    let region = Region::allocate(4 * 480 * 2050, Grant::Persistent).unwrap();
    thread::scope(|scope| {
        for part in 0..4 {
            let (host, shards, region) = (&served.host, &served.shards, &region);
            scope.spawn(move || {
                for _ in 0..20 {
                    let plan = rows(480, part * 480 * 2050);
                    let options = Submit::default();
                    let ticket = host.submit(shards, &plan, region, options).unwrap();
                    thread::scope(|scope| {
                        scope.spawn(|| assert!(ticket.wait(100, None).done >= 100));
                        assert!(ticket.wait(480, None).is_done());
                    });
                    assert_eq!(ticket.progress().failed, 0);
                    check(region, &plan);
                }
            });
        }
    });
}

#[test]
fn the_first_of_several_plans_ends_a_wait() {
    let served = Served::start(1 << 30);
    let region = Region::allocate((64 << 20) + 4 * 2050, Grant::Persistent).unwrap();
    let submit = |plan: &[Entry], class| {
        let options = Submit { class, ..Submit::default() };
        served.host.submit(&served.shards, plan, &region, options).unwrap()
    };
    let long = [Entry { shard: 0, length: 64 << 20, offset: PATTERN_BYTES, dst: 4 * 2050 }];
    for _ in 0..20 {
        let long = submit(&long, Class::Background);
        let plan = rows(4, 0);
        let short = submit(&plan, Class::Foreground);
        served.host.wait_any(&[(&long, 1), (&short, 9)], None);
        assert!(short.is_done() || long.is_done());
        // What has ended already is not waited for, and nothing is not.
        served.host.wait_any(&[(&long, 1), (&short, 0)], None);
        served.host.wait_any(&[], None);
        served.host.wait_any(&[(&long, 1)], Some(Duration::ZERO));
        assert!(short.wait(4, None).is_done());
        check(&region, &plan);
        // Its memory is free when it has ended.
        long.cancel();
        assert!(long.wait(1, None).is_done());
    }
}

#[test]
fn memory_is_free_when_a_plan_is_seen_to_have_ended() {
    let served = Served::start(PATTERN_BYTES);
    let region = Region::allocate(4 * 2050, Grant::Persistent).unwrap();
    let plan = rows(4, 0);
    for _ in 0..2_000 {
        let options = Submit::default();
        let ticket = served.host.submit(&served.shards, &plan, &region, options).unwrap();
        // The host's thread drives.
        let fd = ticket.fd().map(drop);
        fd.unwrap();
        while !ticket.is_done() {
            thread::yield_now();
        }
    }
    check(&region, &plan);
}

#[test]
fn a_descriptor_tells_of_the_end() {
    let served = Served::start(PATTERN_BYTES);
    let region = Region::allocate(480 * 2050, Grant::Persistent).unwrap();
    for asked_before in [true, false] {
        let plan = rows(480, 0);
        let options = Submit::default();
        let ticket = served.host.submit(&served.shards, &plan, &region, options).unwrap();
        if !asked_before {
            ticket.wait(480, None);
        }
        // Nobody waits: the host's thread drives.
        let mut fds = [PollFd::from_borrowed_fd(ticket.fd().unwrap(), PollFlags::IN)];
        let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&minute)).unwrap(), 1);
        assert!(ticket.is_done());
        check(&region, &plan);
    }
}

#[test]
fn a_million_ranges_are_cancelled_at_once() {
    let served = Served::start(PATTERN_BYTES);
    let region = Region::allocate(1_000_000 * 64, Grant::Persistent).unwrap();
    let entry = |i: u64| Entry { shard: 0, length: 60, offset: i % 4096, dst: i * 64 };
    let plan: Vec<_> = (0..1_000_000).rev().map(entry).collect();
    let before = clock_gettime(ClockId::ThreadCPUTime);
    let ticket = served.host.submit(&served.shards, &plan, &region, Submit::default()).unwrap();
    let submitted = clock_gettime(ClockId::ThreadCPUTime);
    let queued = ticket.cancel();
    let cancelled = clock_gettime(ClockId::ThreadCPUTime);
    let ms = |from: Timespec, to: Timespec| {
        (to.tv_sec - from.tv_sec) * 1000 + (to.tv_nsec - from.tv_nsec) / 1_000_000
    };
    let (submit_ms, cancel_ms) = (ms(before, submitted), ms(submitted, cancelled));
    println!("{queued} queued; submitted in {submit_ms} ms, cancelled in {cancel_ms} ms of CPU");
    assert!(ticket.wait(usize::MAX, Some(Duration::from_secs(60))).is_done());
    let done = |status| ticket.outcomes().filter(|outcome| outcome.status == status).count();
    assert_eq!(done(0) + done(Outcome::CANCELLED), 1_000_000);
    // Whatever the machine is doing beside, half of the plan is not read within a second of CPU.
    assert!(queued > 500_000 && cancel_ms < 1000, "{queued} queued, {cancel_ms} ms");
    assert!(!region.is_in_flight());
}

#[test]
fn a_row_goes_before_a_long_plan_of_the_other_class() {
    let served = Served::start(400 << 20);
    let region = Region::allocate((400 << 20) + 2050, Grant::Persistent).unwrap();
    let long: Vec<_> = (0..400u64)
        .map(|i| Entry { shard: 0, length: 1 << 20, offset: i << 20, dst: i << 20 })
        .collect();
    let background = Submit { class: Class::Background, deadline: None };
    let long = served.host.submit(&served.shards, &long, &region, background).unwrap();
    // Until it is in progress.
    long.wait(1, None);
    let before = long.progress().done;
    let mut slowest = Duration::ZERO;
    for _ in 0..5 {
        let row = rows(1, 400 << 20);
        let begin = Host::now();
        let ticket = served.host.submit(&served.shards, &row, &region, Submit::default()).unwrap();
        assert!(ticket.wait(1, None).is_done());
        slowest = slowest.max(Host::now().saturating_duration_since(begin));
    }
    // Each row waits for what is in flight of the long plan, about 2 MiB. A machine that is busy
    // may hold this thread up for many times that; behind the long plan, a row would wait for all
    // of it.
    let done = long.progress().done - before;
    println!("slowest of 5 rows beside 400 MiB: {slowest:?}, {done} MiB meanwhile");
    assert!(done < 200, "{done} MiB were read before 5 rows");
    let begin = Host::now();
    long.wait(usize::MAX, None);
    let seconds = Host::now().saturating_duration_since(begin).as_secs_f64();
    println!("the rest at {:.0} MB/s", (400 - before - done) as f64 * 1.048576 / seconds);
    assert_eq!(long.progress().failed, 0);
}

#[test]
fn plans_of_other_hosts_are_refused_and_outlived() {
    let served = Served::start(PATTERN_BYTES);
    let other = Host::new().unwrap();
    let region = Region::allocate(480 * 2050, Grant::Persistent).unwrap();
    let error = other.submit(&served.shards, &rows(1, 0), &region, Submit::default()).unwrap_err();
    assert!(matches!(error, PlanError::Host(_)), "{error}");
    let options = Submit::default();
    for _ in 0..20 {
        // All handles go while ranges are in flight.
        let host = Host::new().unwrap();
        let namespace = host.connect(served.at).wait().unwrap().namespace(Nsid(1)).wait().unwrap();
        let (dropped, drops) = mpsc::channel();
        let region = told_region(dropped);
        let shards = Shards::new([namespace]).unwrap();
        let ticket = host.submit(&shards, &rows(480, 0), &region, options).unwrap();
        drop((shards, region, ticket, host));
        drops.recv_timeout(Duration::from_secs(60)).expect("the owner is dropped");
        assert!(drops.recv().is_err(), "and not twice");
    }
}

#[test]
fn a_vector_is_lent_to_one_plan_after_the_other() {
    let served = Served::start(PATTERN_BYTES);
    let plan = rows(480, 0);
    let mut bytes = vec![0; 480 * 2050];
    let at = bytes.as_ptr();
    for _ in 0..50 {
        bytes.fill(0);
        let region = Region::from_vec(bytes, Grant::Persistent);
        let ticket = served.host.submit(&served.shards, &plan, &region, Submit::default()).unwrap();
        while !ticket.is_done() {
            // Another thread may drive: what is done is to be seen here without a lock.
            thread::yield_now();
        }
        bytes = region.into_vec().expect("nothing is in flight");
        for entry in &plan {
            let row = &bytes[entry.dst as usize..][..2050];
            assert!(row.iter().copied().eq((entry.offset..).map(pattern).take(2050)), "{entry:?}");
        }
    }
    assert_eq!(bytes.as_ptr(), at, "nothing is copied");
}

/// Memory that tells when it is released.
fn told_region(dropped: mpsc::Sender<()>) -> Region {
    struct Owner(mpsc::Sender<()>, Vec<u8>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.1.fill(7);
            self.0.send(()).unwrap();
        }
    }
    let mut owner = Box::new(Owner(dropped, vec![0; 480 * 2050]));
    let address = std::ptr::NonNull::new(owner.1.as_mut_ptr()).unwrap();
    // SAFETY: the vector is neither moved nor used before the owner is dropped.
    unsafe { Region::from_raw(address, 480 * 2050, Grant::Persistent, owner) }
}

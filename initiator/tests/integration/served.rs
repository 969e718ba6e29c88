//! The initiator and the real target, over UDP sockets of one machine.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use feedrail_initiator::{
    ControllerOptions, ErrorKind, Grant, Host, Namespace, Nqn, Nsid, RdmaProvider, ReadRange,
    RegionSlice, SubsystemAddress as Subsystem, WriteRange,
};
use feedrail_target::Target;
use feedrail_target::config::{Cores, ProviderChoice};
use feedrail_target::{Config, Quick};
use nvme_proto::Status;
use tempfile::TempDir;

/// The UDP port of RoCE v2.
const ROCE_PORT: u16 = 4791;

pub(crate) struct Served {
    target: Option<Target>,
    config: Config,
    pub(crate) at: Subsystem,
    _directory: TempDir,
    path: std::path::PathBuf,
}

/// An address that no other test uses.
fn address() -> SocketAddr {
    let [a, b, c, ..] = *uuid::Uuid::new_v4().as_bytes();
    let ip: IpAddr = [127, a.clamp(1, 254), b, c.clamp(2, 254)].into();
    SocketAddr::new(ip, 4420)
}

pub(crate) fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(31) ^ (at >> 16).wrapping_mul(17)) as u8
}

impl Served {
    pub(crate) fn start(length: usize, writable: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.bin");
        let bytes: Vec<u8> = (0..length).map(pattern).collect();
        std::fs::File::create(&path).unwrap().write_all(&bytes).unwrap();
        let at =
            Subsystem { address: address(), nqn: "nqn.2026-01.io.feedrail:files".parse().unwrap() };
        let config = Config::quick(Quick {
            listen: vec![at.address],
            paths: vec![path.clone()],
            writable,
            direct_io: Default::default(),
            nqn: Some(at.nqn),
            machine: None,
            provider: ProviderChoice::Auto,
            cores: Cores::Count(1),
        })
        .unwrap();
        let target = Some(Target::start(&config).unwrap());
        Self { target, config, at, _directory: directory, path }
    }

    pub(crate) fn open(&self, host: &Host) -> Namespace {
        let controller = host.connect(self.at).wait().unwrap();
        controller.namespace(Nsid(1)).wait().unwrap()
    }
}

fn read(
    namespace: &Namespace,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, feedrail_initiator::Error> {
    namespace.read_to_vec(offset, length).wait()
}

#[test]
fn a_file_of_odd_length_is_read_exactly() {
    let served = Served::start(18_071, false);
    let host = Host::new().unwrap();
    let namespace = served.open(&host);
    assert_eq!(namespace.size_bytes(), 18_071);
    assert_eq!(namespace.info().name.as_deref(), Some("data.bin"));
    for (offset, length) in
        [(0, 18_071), (1, 1), (511, 2), (18_070, 1), (100, 17_000), (4096, 8192)]
    {
        let expected: Vec<u8> = (offset..offset + length).map(pattern).collect();
        assert!(read(&namespace, offset as u64, length).unwrap() == expected, "{offset} {length}");
    }
    let error = read(&namespace, 18_071, 1).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfRange { size_bytes: 18_071 }), "{error}");
}

#[test]
fn many_ranges_at_once_on_several_queues() {
    let length = 3_000_017;
    let served = Served::start(length, false);
    let host = Host::builder().io_queues(4).build().unwrap();
    let namespace = served.open(&host);
    for grant in [Grant::Persistent, Grant::PerCommand] {
        let memory = RegionSlice::allocate(300 * 9_000, grant).unwrap();
        let ranges = memory.chunks(9_000).enumerate().map(|(i, into)| {
            let offset = (i * 7_919_993) % (length - 9_000);
            ReadRange { namespace: namespace.clone(), offset: offset as u64, into }
        });
        let outcomes = host.read_many(ranges).wait();
        for (i, outcome) in outcomes.into_iter().enumerate() {
            outcome.result.unwrap();
            let offset = (i * 7_919_993) % (length - 9_000);
            assert!(
                outcome.slice.bytes().iter().enumerate().all(|(j, &b)| b == pattern(offset + j))
            );
        }
    }
}

#[test]
fn a_read_only_namespace_refuses_writes() {
    let served = Served::start(8192, false);
    let host = Host::new().unwrap();
    let namespace = served.open(&host);
    assert!(namespace.info().write_protected);
    let slice = RegionSlice::from_vec(vec![1; 512], Grant::Persistent);
    let error = namespace.write(0, slice).wait().result.unwrap_err();
    assert!(error.status().is_some_and(|s| s.is(Status::NAMESPACE_IS_WRITE_PROTECTED)), "{error}");
}

#[test]
fn flushed_writes_are_in_the_file() {
    let length = 1 << 20;
    let served = Served::start(length, true);
    let host = Host::new().unwrap();
    let namespace = served.open(&host);
    let mut model: Vec<u8> = (0..length).map(pattern).collect();
    let mut ranges = Vec::new();
    for i in 0..200usize {
        let offset = (i * 5_000) % (length - 5_000);
        let bytes: Vec<u8> = (0..4_999).map(|j| (i * 3 + j) as u8).collect();
        model[offset..offset + 4_999].copy_from_slice(&bytes);
        let from = RegionSlice::from_vec(bytes, Grant::Persistent);
        ranges.push(WriteRange { namespace: namespace.clone(), offset: offset as u64, from });
    }
    for outcome in host.write_many(ranges).wait() {
        outcome.result.unwrap();
    }
    namespace.flush().wait().unwrap();
    assert!(std::fs::read(&served.path).unwrap() == model);
    assert!(read(&namespace, 0, length).unwrap() == model);
    namespace.compare(512, &model[512..66_048]).wait().unwrap();
    namespace.write_zeroes(4096, 8192).wait().unwrap();
    assert!(read(&namespace, 4096, 8192).unwrap() == [0; 8192]);
    let error = namespace.compare(4096, &[1; 512]).wait().unwrap_err();
    assert!(error.status().is_some_and(|s| s.is(Status::COMPARE_FAILURE)), "{error}");
    namespace.deallocate(&[(0, 4096), (8192, 4096)]).wait().unwrap();
}

#[test]
fn discovers_what_is_served() {
    let served = Served::start(512, false);
    let host = Host::new().unwrap();
    let log = host.discover(served.at.address).wait().unwrap();
    let found = log.entries.iter().any(|entry| entry.subnqn.parse() == Ok(served.at.nqn));
    assert!(found, "{log:?}");
}

#[test]
fn errors_name_a_wrong_nqn_or_address() {
    let served = Served::start(512, false);
    let host = Host::new().unwrap();
    let nqn: Nqn = "nqn.2024-01.org.example:nothing".parse().unwrap();
    let error = host.connect(Subsystem { nqn, ..served.at }).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::ConnectRefused { .. }), "{error}");
    assert!(error.to_string().contains("nqn.2024-01.org.example:nothing"), "{error}");
    let nobody = Subsystem { address: address(), ..served.at };
    let error = host.connect(nobody).wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unreachable(_)), "{error}");
}

#[test]
fn reads_go_on_when_the_target_comes_back() {
    let mut served = Served::start(100_000, false);
    let host = Host::builder().reconnect_delay(Duration::from_millis(100)).build().unwrap();
    let namespace = served.open(&host);
    assert!(read(&namespace, 0, 1000).is_ok());
    drop(served.target.take());
    let pending = namespace.read_to_vec(5, 50_000);
    served.target = Some(Target::start(&served.config).unwrap());
    let expected: Vec<u8> = (5..50_005).map(pattern).collect();
    assert!(pending.wait().unwrap() == expected);
    assert!(host.counters().reconnects > 0);
}

#[test]
fn an_error_names_the_lost_target() {
    let mut served = Served::start(4096, false);
    let host = Host::builder()
        .reconnect_delay(Duration::from_millis(50))
        .loss_timeout(Duration::from_millis(600))
        .build()
        .unwrap();
    let namespace = served.open(&host);
    drop(served.target.take());
    let error = read(&namespace, 0, 512).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost { .. }), "{error}");
    assert!(error.to_string().contains(&served.at.address.to_string()), "{error}");
}

/// Waits for what other threads do.
#[expect(clippy::disallowed_methods, reason = "nobody else drives the host")]
fn eventually(mut condition: impl FnMut() -> bool) {
    for _ in 0..12_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it is not so after two minutes");
}

#[test]
fn ranges_are_read_though_nobody_waits() {
    let served = Served::start(1 << 20, false);
    let host = Host::new().unwrap();
    let namespace = served.open(&host);
    let ranges = |count: usize| {
        let memory = RegionSlice::allocate(count * 1000, Grant::Persistent).unwrap();
        let ranges = memory.chunks(1000).enumerate();
        ranges.map(|(i, into)| (i as u64 * 1003 % 1_000_000, into))
    };
    for round in 1..=3 {
        let range = |(offset, into)| ReadRange { namespace: namespace.clone(), offset, into };
        let reading = host.read_many(ranges(480).map(range));
        eventually(|| host.counters().ranges == round * 480);
        assert!(reading.wait().iter().all(|outcome| outcome.result.is_ok()));
    }
    let before = host.counters().ranges;
    let mut ring = host.ring(200);
    for (offset, into) in ranges(100) {
        ring.read(&namespace, offset, into, offset).unwrap();
    }
    eventually(|| host.counters().ranges == before + 96);
    ring.submit();
    eventually(|| host.counters().ranges == before + 100);
}

#[test]
fn rings_keep_ranges_in_flight() {
    let served = Served::start(1 << 20, false);
    let host = Host::new().unwrap();
    let namespace = served.open(&host);
    let mut ring = host.ring(16);
    let memory = RegionSlice::allocate(16 * 4096, Grant::Persistent).unwrap();
    for (token, slice) in memory.chunks(4096).enumerate() {
        ring.read(&namespace, token as u64 * 4096, slice, token as u64).unwrap();
    }
    let (mut done, mut total) = (Vec::new(), 16u64);
    let mut reads = 0;
    while reads < 2000 {
        ring.wait(1, Some(Duration::from_secs(10)), &mut done);
        assert!(!done.is_empty());
        for completion in done.drain(..) {
            completion.result.unwrap();
            let offset = (completion.token % 256) as usize * 4096;
            assert!(
                completion.slice.bytes()[0] == pattern(offset)
                    && completion.slice.bytes()[4095] == pattern(offset + 4095)
            );
            reads += 1;
            let next = (total % 256) * 4096;
            ring.read(&namespace, next, completion.slice, total).unwrap();
            total += 1;
        }
    }
    assert_eq!(host.counters().bounced_steps, 0);
}

/// Each host has keys of its own for the same memory, and the next host's device may have the
/// numbers of one that is gone.
#[test]
fn memory_moves_from_host_to_host() {
    let served = Served::start(64 << 10, false);
    let [first, second] = [(); 2].map(|()| Host::new().unwrap());
    let mut slice = RegionSlice::allocate(2 * 4096, Grant::Persistent).unwrap();
    let mut read = |host: &Host, offset: usize| {
        slice.fill(0);
        let mut front =
            std::mem::replace(&mut slice, RegionSlice::from_vec(vec![], Grant::Persistent));
        let back = front.split_off(4096);
        let namespace = served.open(host);
        let [front, back] = [(front, offset), (back, offset + 4096)].map(|(into, offset)| {
            let outcome = namespace.read(offset as u64, into).wait();
            outcome.result.unwrap();
            outcome.slice
        });
        slice = front.join(back).unwrap();
        assert!(
            slice.bytes().iter().enumerate().all(|(i, &byte)| byte == pattern(offset + i)),
            "{offset}"
        );
    };
    read(&first, 0);
    read(&second, 8192);
    read(&first, 16_384);
    drop(first);
    read(&Host::new().unwrap(), 24_576);
    read(&second, 32_768);
}

#[test]
fn threads_and_futures_share_a_host() {
    let served = Served::start(1 << 20, false);
    let host = Host::builder().io_queues(2).build().unwrap();
    let namespace = served.open(&host);
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let namespace = &namespace;
            scope.spawn(move || {
                for i in 0..100usize {
                    let offset = (thread * 100 + i) * 2_001;
                    let bytes = read(namespace, offset as u64, 1_000).unwrap();
                    assert!(bytes.iter().enumerate().all(|(j, &b)| b == pattern(offset + j)));
                }
            });
        }
        let namespace = &namespace;
        scope.spawn(move || {
            for i in 0..50usize {
                let bytes = block_on(namespace.read_to_vec(i as u64 * 11, 5_000)).unwrap();
                assert!(bytes.iter().enumerate().all(|(j, &b)| b == pattern(i * 11 + j)));
            }
        });
    });
}

#[test]
fn a_read_is_acknowledged_without_the_callers_help() {
    let served = Served::start(1 << 16, false);
    let host = Host::builder().provider(RdmaProvider::Soft).build().unwrap();
    let namespace = served.open(&host);
    let packets = || host.provider_stats().iter().map(|stats| stats.packets_sent).sum::<u64>();
    // On a busy machine the driver's thread may be late for some reads; an acknowledgement that
    // waits for the next command is late for all.
    let mut acknowledged = 0;
    eventually(|| {
        let before = packets();
        read(&namespace, 0, 512).unwrap();
        // The command, and the acknowledgement of the response.
        acknowledged += u32::from(packets() >= before + 2);
        // Twice, because the wake-up that came with the result may end the first immediately: a
        // caller that comes back so soon is expected to continue.
        std::thread::park_timeout(Duration::from_millis(1));
        std::thread::park_timeout(Duration::from_millis(1));
        acknowledged == 10
    });
}

#[test]
fn results_of_others_do_not_wake_long_waiters() {
    let served = Served::start(1 << 16, false);
    let host = Host::new().unwrap();
    let namespace = served.open(&host);
    let (_socket, silent) = silent_target(&served);
    let (mut reads, mut sleeps) = (0, 0);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let before = sleeps_of_this_thread();
            let connect_timeout = Duration::from_secs(2);
            let options = ControllerOptions::new().connect_timeout(connect_timeout);
            let error = host.connect_with(silent, options).wait().unwrap_err();
            assert!(error.to_string().contains("no answer"), "{error}");
            sleeps_of_this_thread() - before
        });
        while !waiting.is_finished() {
            read(&namespace, 0, 512).unwrap();
            reads += 1;
        }
        sleeps = waiting.join().unwrap();
    });
    println!("{sleeps} sleeps beside {reads} reads");
    assert!(sleeps < 100 + reads / 100);
}

#[test]
fn a_long_waiter_gets_its_result_alone() {
    let served = Served::start(1 << 16, false);
    let host = Host::new().unwrap();
    let namespace = served.open(&host);
    let (_socket, silent) = silent_target(&served);
    let connect_timeout = Duration::from_secs(1);
    let options = ControllerOptions::new().connect_timeout(connect_timeout);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| host.connect_with(silent, options).wait().unwrap_err());
        // Long enough that it stands aside, and over long before its result is due.
        for _ in 0..200 {
            read(&namespace, 0, 512).unwrap();
        }
        let error = waiting.join().unwrap();
        assert!(error.to_string().contains("no answer"), "{error}");
    });
}

/// A target that takes what comes, for as long as the socket is there, and never answers.
fn silent_target(served: &Served) -> (std::net::UdpSocket, Subsystem) {
    let ip = address().ip();
    let socket = std::net::UdpSocket::bind((ip, ROCE_PORT)).unwrap();
    (socket, Subsystem { address: SocketAddr::new(ip, 4420), ..served.at })
}

/// How often this thread has waited for something so far.
fn sleeps_of_this_thread() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// The smallest runtime: it only waits to be woken.
pub(crate) fn block_on<F: std::future::Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

#[test]
fn an_idle_host_stays_connected() {
    let served = Served::start(4096, false);
    // Two Keep Alive commands are sent in each timeout, so three of them take longer than one. The
    // timeout is long enough for a busy machine.
    let host = Host::builder().keep_alive_ms(5_000).build().unwrap();
    let namespace = served.open(&host);
    eventually(|| host.counters().keep_alives >= 3);
    assert!(read(&namespace, 0, 512).is_ok());
    assert_eq!(host.counters().connections_lost, 0);
}

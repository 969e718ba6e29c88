//! How fast the soft provider moves bytes between two threads over loopback.
//!
//! `cargo run --release -p feedrail-rdma --example blast [bytes per write] [writes in flight]
//! [seconds]`
#![expect(unsafe_code, reason = "work requests name memory by address")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rdma::soft::Soft;
use rdma::soft::{PortChoice, SoftDevice, SoftOptions};
use rdma::{
    Access, CmEvent, ConnOptions, ConnParams, ConnectionManager, Device, Group, GroupConfig,
    GroupStats, Mem, MemoryRegion, Op, Provider, QpConfig, QpKey, SendFlags, SendWr, Sge, Time, Wc,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

const QP: QpConfig =
    QpConfig { send_wr: 128, recv_wr: 16, send_sge: 1, recv_sge: 1, inline_bytes: 0 };

type SoftGroup = <Soft as Provider>::Group;
type SoftCm = <Soft as Provider>::Cm;

/// One side: a device, its group and its connection manager.
struct Side {
    device: SoftDevice,
    group: SoftGroup,
    cm: SoftCm,
    start: Instant,
}

#[expect(clippy::disallowed_methods, reason = "this is the driver")]
fn instant() -> Instant {
    Instant::now()
}

impl Side {
    fn open(last: u8, start: Instant) -> Self {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, high | 1, low, last);
        let device = SoftDevice::open(&SoftOptions::new(address.into(), PortChoice::Roce));
        let device = device.expect("open the device");
        let config = GroupConfig { completions: 1024, queue_pairs: 4, completion_vector: 0 };
        let group = device.group(&config).expect("make a group");
        let cm = device.connection_manager().expect("make a connection manager");
        Self { device, group, cm, start }
    }

    fn now(&self) -> Time {
        Time::ZERO + (instant() - self.start)
    }

    /// Sleeps until there is something to do, for 10 ms at most.
    fn sleep(&self) {
        let fds = [self.group.fd(), self.cm.fd()];
        let fds = fds.iter().flatten();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let deadline = [self.group.deadline(), self.cm.deadline()].into_iter().flatten().min();
        let limit = Duration::from_millis(10);
        let timeout = deadline.map_or(limit, |deadline| (deadline - self.now()).min(limit));
        let nanos = timeout.subsec_nanos();
        let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: nanos.into() }));
    }

    fn event(&mut self) -> CmEvent {
        loop {
            let now = self.now();
            self.group.poll(now, &mut []);
            if let Some(event) = self.cm.poll(now) {
                return event;
            }
            self.sleep();
        }
    }

    /// Polls until there are completions, or nothing happened for a while.
    fn completions(&mut self, wcs: &mut [Wc]) -> usize {
        let now = self.now();
        let count = self.group.poll(now, wcs);
        if count == 0 {
            self.sleep();
        }
        count
    }

    fn adopt(&mut self, conn: rdma::ConnId) -> QpKey {
        let handle = self.group.handle();
        let qp = self.cm.create_qp(conn, &handle, &self.device, &QP).expect("create a queue pair");
        self.group.adopt(qp)
    }
}

fn params() -> ConnParams {
    ConnParams {
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        ..ConnParams::default()
    }
}

/// Memory that lives until the process ends, registered.
fn memory(side: &Side, length: usize) -> (u64, <Soft as Provider>::Region) {
    let memory = Box::leak(vec![0x5A_u8; length].into_boxed_slice()).as_mut_ptr();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    // SAFETY: leaked memory stays mapped, and nothing else reaches it.
    let region = unsafe { side.device.register(Mem::Host { addr: memory, length }, access) };
    (memory.expose_provenance() as u64, region.expect("register"))
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let length: u32 = arguments.next().unwrap_or(131_072);
    let depth: u64 = arguments.next().unwrap_or(8).into();
    let seconds = arguments.next().unwrap_or(3);
    let start = instant();
    let mut sink = Side::open(2, start);
    let (addr, region) = memory(&sink, length as usize);
    let ip = sink.device.local_ip();
    let listener = sink.cm.listen(SocketAddr::new(ip, 0), &ConnOptions::default()).expect("listen");
    let to = sink.cm.local_addr(listener).expect("an address");
    let rkey = region.rkey();
    let stop = Arc::new(AtomicBool::new(false));
    let receiver = {
        let stop = stop.clone();
        thread::spawn(move || receive(&mut sink, &stop))
    };
    let mut source = Side::open(1, start);
    let qp = connect(&mut source, to);
    let (bytes, elapsed) = write(&mut source, qp, depth, length, seconds, (addr, rkey));
    stop.store(true, Ordering::Relaxed);
    let received = receiver.join().expect("the receiver");
    drop(region);
    println!("{:.0} MB/s", bytes as f64 / elapsed.as_secs_f64() / 1e6);
    report("source", &source.group.stats());
    report("sink", &received);
}

fn connect(side: &mut Side, to: SocketAddr) -> QpKey {
    let (now, options) = (side.now(), ConnOptions::default());
    let conn = side.cm.resolve(now, to, Duration::from_secs(1), &options).expect("resolve");
    assert!(matches!(side.event(), CmEvent::Resolved { .. }));
    let qp = side.adopt(conn);
    let now = side.now();
    side.cm.connect(now, conn, &params()).expect("connect");
    assert!(matches!(side.event(), CmEvent::Established { .. }));
    qp
}

fn receive(side: &mut Side, stop: &AtomicBool) -> GroupStats {
    let CmEvent::ConnectRequest { conn, .. } = side.event() else { panic!("no request") };
    side.adopt(conn);
    let now = side.now();
    side.cm.accept(now, conn, &params()).expect("accept");
    let mut wcs = [Wc::default(); 16];
    while !stop.load(Ordering::Relaxed) {
        side.completions(&mut wcs);
        let now = side.now();
        while side.cm.poll(now).is_some() {}
    }
    side.group.stats()
}

/// Keeps `depth` writes in flight for some time; returns bytes written and the time it took.
fn write(
    side: &mut Side,
    qp: QpKey,
    depth: u64,
    length: u32,
    seconds: u32,
    (remote_addr, rkey): (u64, u32),
) -> (u64, Duration) {
    let (addr, region) = memory(side, length as usize);
    let sges = [Sge { addr, length, lkey: region.lkey() }];
    let op = Op::RdmaWrite { remote_addr, rkey };
    let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, sges: &sges };
    let begin = instant();
    let end = begin + Duration::from_secs(seconds.into());
    let (mut pushed, mut done) = (0, 0);
    let mut wcs = [Wc::default(); 64];
    while instant() < end {
        while pushed - done < depth {
            // SAFETY: the memory is never freed.
            unsafe { side.group.push_send(qp, &wr) }.expect("push");
            pushed += 1;
        }
        let now = side.now();
        side.group.flush(now);
        let count = side.completions(&mut wcs);
        assert!(wcs[..count].iter().all(Wc::is_success), "{:?}", &wcs[..count]);
        done += count as u64;
    }
    (done * u64::from(length), instant() - begin)
}

fn report(name: &str, stats: &GroupStats) {
    let ratio = |packets: u64, calls: u64| packets as f64 / calls.max(1) as f64;
    println!(
        "{name}: {:.1} packets per send call, {:.1} per receive call, {} sent again of {}, {} timeouts, {} dropped",
        ratio(stats.packets_sent, stats.send_calls),
        ratio(stats.packets_received, stats.receive_calls),
        stats.packets_retransmitted,
        stats.packets_sent,
        stats.ack_timeouts,
        stats.packets_dropped,
    );
}

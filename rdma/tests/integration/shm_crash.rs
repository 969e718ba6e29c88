//! Peers in shared memory that end or stop at any step: the other side gets what it would get on
//! other providers, frees everything, and continues with others.
#![expect(unsafe_code, reason = "registers memory and pushes requests")]

use core::time::Duration;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use rdma::shm::{ShmCm, ShmDevice, ShmGroup, ShmOptions};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectFailure, ConnectionManager, Device,
    Group, GroupConfig, Mem, MemoryRegion, Op, Provider, QpConfig, QpKey, RecvWr, SendFlags,
    SendWr, Sge, Shm, Time, Wc, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal};
use rusty_fork::rusty_fork_test;

const QP: QpConfig =
    QpConfig { send_wr: 16, recv_wr: 16, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
const PARAMS: ConnParams = ConnParams {
    responder_resources: 4,
    initiator_depth: 4,
    retry_count: 1,
    rnr_retry_count: 7,
    private_data: rdma::PrivateData::EMPTY,
};
const BYTES: usize = 100_000;
/// Longer than any patience.
const LONG: Duration = Duration::from_secs(60);

/// The open descriptors, without those of files in `/proc`: the C library opens one for a moment
/// in whichever thread gives memory back first, and the listing itself is another.
fn descriptors() -> usize {
    let listing = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = listing.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| !target.starts_with("/proc")).count()
}

/// One process, as far as its peers can tell. Dropping it says no farewell.
struct Party {
    region: Option<<Shm as Provider>::Region>,
    memory: Box<[u8]>,
    group: ShmGroup,
    cm: ShmCm,
    device: ShmDevice,
    now: Time,
    conn: Option<ConnId>,
    qp: Option<QpKey>,
    events: Vec<CmEvent>,
    wcs: Vec<Wc>,
    pushed: usize,
}

impl Party {
    fn new() -> Self {
        let device = ShmDevice::open(&ShmOptions::new([127, 0, 0, 1].into())).unwrap();
        let config = GroupConfig { completions: 64, queue_pairs: 4, completion_vector: 0 };
        let mut memory = vec![7; BYTES].into_boxed_slice();
        let place = Mem::Host { addr: memory.as_mut_ptr(), length: BYTES };
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        // SAFETY: the region is dropped before the memory.
        let region = unsafe { device.register(place, access) }.unwrap();
        Self {
            region: Some(region),
            memory,
            group: device.group(&config).unwrap(),
            cm: device.connection_manager().unwrap(),
            device,
            now: Time::from_nanos(1),
            conn: None,
            qp: None,
            events: Vec::new(),
            wcs: Vec::new(),
            pushed: 0,
        }
    }

    fn listen(&mut self) -> SocketAddr {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = self.cm.listen(any, &ConnOptions::default()).unwrap();
        self.cm.local_addr(listener).unwrap()
    }

    fn addr(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    fn key(&self) -> u32 {
        self.region.as_ref().unwrap().rkey()
    }

    fn sge(&self, length: usize) -> Sge {
        Sge { addr: self.addr(), length: length as u32, lkey: self.key() }
    }

    fn make_qp(&mut self) {
        let (conn, handle) = (self.conn.unwrap(), self.group.handle());
        let qp = self.cm.create_qp(conn, &handle, &self.device, &QP).unwrap();
        let qp = self.group.adopt(qp);
        self.qp = Some(qp);
        for wr_id in 0..4 {
            let wr = RecvWr { wr_id, sges: &[self.sge(64)] };
            // SAFETY: the memory lives as long as the group.
            unsafe { self.group.push_recv(qp, &wr) }.unwrap();
            self.pushed += 1;
        }
    }

    fn resolve(&mut self, to: SocketAddr) {
        let options = ConnOptions { ack_timeout_exponent: Some(14), ..ConnOptions::default() };
        self.conn = Some(self.cm.resolve(self.now, to, LONG, &options).unwrap());
        self.make_qp();
    }

    fn connect(&mut self) {
        self.cm.connect(self.now, self.conn.unwrap(), &PARAMS).unwrap();
    }

    fn accept(&mut self) {
        self.cm.accept(self.now, self.conn.unwrap(), &PARAMS).unwrap();
    }

    fn push(&mut self, wr_id: u64, op: Op, length: usize) {
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, sges: &[self.sge(length)] };
        // SAFETY: as in `make_qp`; what the bytes are matters to nobody.
        unsafe { self.group.push_send(self.qp.unwrap(), &wr) }.unwrap();
        self.pushed += 1;
        self.group.flush(self.now);
    }

    /// A message, and more data each way than a ring holds.
    fn transfer(&mut self, (remote_addr, rkey): (u64, u32)) {
        self.push(100, Op::Send, 64);
        self.push(101, Op::RdmaWrite { remote_addr, rkey }, BYTES);
        self.push(102, Op::RdmaRead { remote_addr, rkey }, BYTES);
    }

    fn poll(&mut self) {
        for _ in 0..10 {
            self.now = self.now + Duration::from_millis(1);
            while let Some(event) = self.cm.poll(self.now) {
                if let CmEvent::ConnectRequest { conn, .. } = event {
                    self.conn = Some(conn);
                }
                self.events.push(event);
            }
            let mut wcs = [Wc::default(); 16];
            let count = self.group.poll(self.now, &mut wcs);
            self.wcs.extend_from_slice(&wcs[..count]);
        }
    }

    /// Waits for a message to the connection manager, but not for long.
    fn wait(&self) {
        let soon = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let fd = PollFd::from_borrowed_fd(self.cm.fd().unwrap(), PollFlags::IN);
        rustix::event::poll(&mut [fd], Some(&soon)).unwrap();
    }

    fn established(&self) -> bool {
        self.events.iter().any(|event| matches!(event, CmEvent::Established { .. }))
    }

    /// Everything of the connection has ended: looks at what was reported, and frees it.
    fn assert_over(&mut self, step: &str) {
        let Some(conn) = self.conn.take() else { return };
        let asked = self.events.iter().any(|event| !matches!(event, CmEvent::Resolved { .. }));
        let end = self.events.last().copied();
        if self.established() {
            let over = matches!(end, Some(CmEvent::Disconnected { .. }));
            assert!(over, "{step}: {end:?}");
        } else if asked {
            let over = matches!(end, Some(CmEvent::ConnectFailed { .. }));
            assert!(over, "{step}: {end:?}");
        }
        let failed = self.wcs.iter().position(|wc| !wc.is_success()).unwrap_or(self.wcs.len());
        for (index, wc) in self.wcs[failed..].iter().enumerate() {
            let first = index == 0 && wc.wr_id >= 100;
            let allowed =
                wc.status == WcStatus::FLUSHED || (first && wc.status == WcStatus::RETRY_EXCEEDED);
            assert!(allowed, "{step}: {wc:?}");
        }
        if asked && self.qp.is_some() {
            assert_eq!(self.wcs.len(), self.pushed, "{step}: all requests complete");
        }
        if let Some(qp) = self.qp.take() {
            self.group.release(qp);
        }
        self.cm.close(conn);
        assert_eq!(self.device.stats().queue_pairs, 0, "{step}");
        (self.pushed, self.wcs, self.events) = (0, Vec::new(), Vec::new());
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.region = None;
    }
}

/// A step of the active or the passive side, given the address of the latter.
type Step = fn(&mut Party, &mut Party, SocketAddr);

/// The course of a connection, one step of one side at a time.
const STEPS: [(&str, Step); 16] = [
    ("resolved", |active, _, address| active.resolve(address)),
    ("asked", |active, _, _| active.connect()),
    ("heard", |_, passive, _| passive.poll()),
    ("prepared", |_, passive, _| passive.make_qp()),
    ("accepted", |_, passive, _| passive.accept()),
    ("ready", |active, _, _| active.poll()),
    ("established", |_, passive, _| passive.poll()),
    ("requested", |active, passive, _| active.transfer((passive.addr(), passive.key()))),
    ("carried out", |_, passive, _| passive.poll()),
    ("answered", |active, _, _| active.poll()),
    ("requested back", |active, passive, _| passive.transfer((active.addr(), active.key()))),
    ("carried out there", |active, _, _| active.poll()),
    ("answered back", |_, passive, _| passive.poll()),
    ("disconnecting", |active, _, _| active.cm.disconnect(active.now, active.conn.unwrap())),
    ("told", |_, passive, _| passive.poll()),
    ("disconnected", |active, _, _| active.poll()),
];

/// Plays a connection up to a step; returns both sides.
fn play(steps: usize) -> (Party, Party, SocketAddr) {
    let (mut active, mut passive) = (Party::new(), Party::new());
    let address = passive.listen();
    for (_, step) in &STEPS[..steps] {
        step(&mut active, &mut passive, address);
    }
    (active, passive, address)
}

/// Polls a side until it has learnt all that it will, however long that takes.
fn outlive(party: &mut Party) {
    party.poll();
    party.now = party.now + LONG;
    party.poll();
}

#[test]
fn a_course_without_a_crash_succeeds() {
    let (active, passive, _) = play(STEPS.len());
    let succeeded = |party: &Party| party.wcs.iter().filter(|wc| wc.is_success()).count();
    // Three requests, and the peer's message.
    assert_eq!((succeeded(&active), succeeded(&passive)), (4, 4));
}

rusty_fork_test! {
    #[test]
    fn a_passive_side_outlives_the_active_one_at_every_step() {
        let before = descriptors();
        for steps in 1..=STEPS.len() {
            let what = STEPS[steps - 1].0;
            let (active, mut passive, address) = play(steps);
            drop(active);
            outlive(&mut passive);
            passive.assert_over(what);
            // It continues with others.
            let mut other = Party::new();
            other.resolve(address);
            other.connect();
            passive.poll();
            passive.make_qp();
            passive.accept();
            other.poll();
            passive.poll();
            other.transfer((passive.addr(), passive.key()));
            for _ in 0..4 {
                passive.poll();
                other.poll();
            }
            assert_eq!(other.wcs.iter().filter(|wc| wc.is_success()).count(), 3, "{what}");
            drop((passive, other));
            assert_eq!(descriptors(), before, "{what}");
        }
    }
}

rusty_fork_test! {
    #[test]
    fn an_active_side_outlives_the_passive_one_at_every_step() {
        let before = descriptors();
        for steps in 1..=STEPS.len() {
            let what = STEPS[steps - 1].0;
            let (mut active, passive, address) = play(steps);
            drop(passive);
            if steps == 1 {
                active.connect();
            }
            outlive(&mut active);
            if steps == 1 {
                let end = active.events.last().unwrap();
                let none = ConnectFailure::NotShared;
                let refused = matches!(end, CmEvent::ConnectFailed { failure, .. } if *failure == none);
                assert!(refused, "{end:?}");
            }
            active.assert_over(what);
            let mut next = Party::new();
            // The address is free immediately.
            next.cm.listen(address, &ConnOptions::default()).unwrap();
            drop((active, next));
            assert_eq!(descriptors(), before, "{what}");
        }
    }
}

/// The process that the next tests kill or stop: it connects, and takes what comes.
#[test]
#[ignore = "a process of another test"]
fn the_process_that_crashes() {
    let Ok(address) = std::env::var("FEEDRAIL_SHM_CRASH") else { return };
    let mut party = Party::new();
    party.resolve(address.parse().unwrap());
    party.connect();
    loop {
        party.poll();
        party.wait();
    }
}

/// Ends a process with the test, however that ends.
struct Crashing(Child);

impl Drop for Crashing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

rusty_fork_test! {
    #[test]
    fn a_process_that_is_stopped_or_killed_costs_only_itself() {
        let before = descriptors();
        for kill in [false, true] {
            let mut passive = Party::new();
            let address = passive.listen();
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "shm_crash::the_process_that_crashes", "--ignored"])
                .env("FEEDRAIL_SHM_CRASH", address.to_string())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut child = Crashing(child);
            let pid = Pid::from_child(&child.0);
            while passive.conn.is_none() {
                passive.poll();
                passive.wait();
            }
            passive.make_qp();
            passive.accept();
            while !passive.established() {
                passive.poll();
                passive.wait();
            }
            rustix::process::kill_process(pid, Signal::STOP).unwrap();
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap();
            passive.push(100, Op::Send, 64);
            passive.push(101, Op::Send, 64);
            passive.poll();
            assert!(passive.wcs.is_empty(), "{:?}", passive.wcs);
            // Somebody else is still served.
            let (active, other, _) = play(STEPS.len());
            assert_eq!(active.wcs.iter().filter(|wc| wc.is_success()).count(), 4);
            drop((active, other));
            if kill {
                child.0.kill().unwrap();
                child.0.wait().unwrap();
                passive.poll();
                let gone = matches!(passive.events.last(), Some(CmEvent::Disconnected { .. }));
                assert!(gone, "{:?}", passive.events);
            } else {
                passive.now = passive.now + LONG;
                passive.poll();
                passive.cm.disconnect(passive.now, passive.conn.unwrap());
                outlive(&mut passive);
            }
            let statuses: Vec<_> = passive.wcs.iter().map(|wc| wc.status).collect();
            // The end of a process is heard by the connection manager first, which flushes.
            let first = if kill { WcStatus::FLUSHED } else { WcStatus::RETRY_EXCEEDED };
            assert_eq!(statuses[0], first, "kill: {kill}, {statuses:?}");
            assert!(statuses[1..].iter().all(|&status| status == WcStatus::FLUSHED), "{statuses:?}");
            passive.assert_over("stopped or killed");
            drop((passive, child));
            assert_eq!(descriptors(), before);
        }
    }
}

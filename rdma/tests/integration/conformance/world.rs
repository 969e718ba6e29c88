//! Two hosts and the time that passes for them.

use std::collections::VecDeque;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rdma::{
    CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group, GroupConfig, Op,
    PrivateData, Provider, QpConfig, QpKey, RecvWr, SendFlags, SendWr, Sge, Time, WakeFor, Wc,
    WcStatus,
};

use super::buffer::Buffer;
use super::differences::{self, Differences, Fault};

/// A source of devices of one provider, which also lets time pass.
pub trait Bench {
    type Provider: Provider;
    /// A device at an address of its own, which others can connect to.
    fn device(&mut self, groups: usize) -> <Self::Provider as Provider>::Device;
    fn now(&self) -> Time;
    /// Passes time until one of the hosts may have something to do, at the latest until `deadline`.
    fn wait(&mut self, hosts: &[&Host<Self::Provider>], deadline: Option<Time>);
    /// An address that no host has.
    fn nobody(&mut self) -> IpAddr;
    fn differences(&self) -> &'static Differences {
        &differences::ENGINE
    }
}

/// How long anything may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Host<P: Provider> {
    pub group: P::Group,
    /// Further groups of the same device, whose completions come with those of the first.
    pub others: Vec<P::Group>,
    pub cm: P::Cm,
    pub events: VecDeque<CmEvent>,
    pub wcs: VecDeque<Wc>,
    pub device: P::Device,
}

pub struct World<B: Bench> {
    pub hosts: Vec<Host<B::Provider>>,
    pub bench: B,
}

/// A queue pair and its connection, on one host.
#[derive(Clone, Copy)]
pub struct End {
    pub host: usize,
    pub qp: QpKey,
    pub conn: ConnId,
}

pub const QP: QpConfig =
    QpConfig { send_wr: 64, recv_wr: 64, send_sge: 8, recv_sge: 8, inline_bytes: 64 };

pub fn params() -> ConnParams {
    ConnParams {
        responder_resources: 8,
        initiator_depth: 8,
        retry_count: 7,
        rnr_retry_count: 7,
        private_data: PrivateData::EMPTY,
    }
}

impl<P: Provider> Host<P> {
    pub fn new(device: P::Device) -> Self {
        Self::with_groups(device, 1)
    }

    pub fn with_groups(device: P::Device, groups: usize) -> Self {
        let config = GroupConfig { completions: 1024, queue_pairs: 16, completion_vector: 0 };
        let group = || device.group(&config).expect("group");
        Self {
            group: group(),
            others: (1..groups).map(|_| group()).collect(),
            cm: device.connection_manager().expect("connection manager"),
            events: VecDeque::new(),
            wcs: VecDeque::new(),
            device,
        }
    }

    /// Does what there is to do; false if it was nothing.
    pub fn turn(&mut self, now: Time) -> bool {
        let mut busy = false;
        while let Some(event) = self.cm.poll(now) {
            self.events.push_back(event);
            busy = true;
        }
        let mut wcs = [Wc::default(); 16];
        for group in iter::once(&mut self.group).chain(&mut self.others) {
            loop {
                let count = group.poll(now, &mut wcs);
                self.wcs.extend(&wcs[..count]);
                busy |= count > 0;
                if count == 0 {
                    break;
                }
            }
        }
        busy
    }

    pub fn deadline(&self) -> Option<Time> {
        let groups = self.groups().filter_map(P::Group::deadline);
        groups.chain(self.cm.deadline()).min()
    }

    /// The descriptors that it sleeps on.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.groups().filter_map(P::Group::fd).chain(self.cm.fd())
    }

    fn arm(&mut self) -> bool {
        self.groups_mut().fold(false, |unsure, group| group.arm(WakeFor::Everything) | unsure)
    }

    fn acknowledge_wake(&mut self) {
        self.groups_mut().for_each(P::Group::acknowledge_wake);
    }

    fn groups(&self) -> impl Iterator<Item = &P::Group> {
        iter::once(&self.group).chain(&self.others)
    }

    fn groups_mut(&mut self) -> impl Iterator<Item = &mut P::Group> {
        iter::once(&mut self.group).chain(&mut self.others)
    }
}

impl<B: Bench> World<B> {
    /// Two hosts, each with a device and one group.
    pub fn new(mut bench: B) -> Self {
        let hosts = (0..2).map(|_| Host::new(bench.device(1))).collect();
        Self { hosts, bench }
    }

    pub fn buffer(&self, host: usize, length: usize) -> Buffer<B::Provider> {
        Buffer::new(&self.hosts[host].device, length, super::buffer::everything())
    }

    /// A window of a host, if its device has any.
    pub fn window(&self, host: usize) -> Option<<B::Provider as Provider>::Window> {
        let device = &self.hosts[host].device;
        match device.window() {
            Ok(window) => Some(window),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::Unsupported, "{error}");
                assert!(!device.caps().memory_windows);
                None
            }
        }
    }

    /// Whether the device is known to do this wrong.
    pub fn has(&self, fault: Fault) -> bool {
        self.bench.differences().faults.contains(&fault)
    }

    pub fn now(&self) -> Time {
        self.bench.now()
    }

    /// Runs until `done` gives something.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = self.now();
        loop {
            let now = self.now();
            let busy = self.hosts.iter_mut().fold(false, |busy, host| host.turn(now) | busy);
            if let Some(result) = done(self) {
                return result;
            }
            assert!(now - start < PATIENCE, "timed out waiting for {what}");
            if !busy {
                self.wait(None);
            }
        }
    }

    /// Runs until nothing has happened for `quiet`.
    pub fn settle(&mut self, quiet: Duration) {
        let mut end = self.now() + quiet;
        while self.now() < end {
            let now = self.now();
            if self.hosts.iter_mut().fold(false, |busy, host| host.turn(now) | busy) {
                end = now + quiet;
            } else {
                self.wait(Some(end));
            }
        }
    }

    /// Runs for this long, however much happens.
    pub fn settle_for(&mut self, duration: Duration) {
        let end = self.now() + duration;
        while self.now() < end {
            let now = self.now();
            if !self.hosts.iter_mut().fold(false, |busy, host| host.turn(now) | busy) {
                self.wait(Some(end));
            }
        }
    }

    /// Sleeps as the interface wants it: arm, look once more, sleep, consume the wake-up.
    fn wait(&mut self, limit: Option<Time>) {
        let now = self.now();
        let unsure = self.hosts.iter_mut().fold(false, |unsure, host| host.arm() | unsure);
        if unsure && self.hosts.iter_mut().fold(false, |busy, host| host.turn(now) | busy) {
            return;
        }
        let deadline = self.hosts.iter().filter_map(Host::deadline).chain(limit).min();
        let hosts: Vec<_> = self.hosts.iter().collect();
        self.bench.wait(&hosts, deadline);
        self.hosts.iter_mut().for_each(|host| host.acknowledge_wake());
    }

    /// The next event of a host.
    pub fn event(&mut self, host: usize) -> CmEvent {
        self.until(&format!("an event of host {host}"), |world| {
            world.hosts[host].events.pop_front()
        })
    }

    /// The next completion of a host.
    pub fn completion(&mut self, host: usize) -> Wc {
        self.until(&format!("a completion of host {host}"), |world| {
            world.hosts[host].wcs.pop_front()
        })
    }

    /// The next completion of a host, which is that of this request, with this result.
    pub fn expect(&mut self, host: usize, wr_id: u64, status: WcStatus) -> Wc {
        let wc = self.completion(host);
        assert_eq!((wc.wr_id, wc.status), (wr_id, status), "on host {host}: {wc:?}");
        wc
    }

    pub fn listen(&mut self, host: usize) -> SocketAddr {
        let addr = SocketAddr::new(self.hosts[host].device.local_ip(), 0);
        let listener = self.hosts[host].cm.listen(addr, &ConnOptions::default()).expect("listen");
        self.hosts[host].cm.local_addr(listener).expect("an address")
    }

    /// Asks for a connection from a host; returns it with its queue pair.
    pub fn ask(
        &mut self,
        host: usize,
        to: SocketAddr,
        options: &ConnOptions,
        config: &QpConfig,
        params: &ConnParams,
    ) -> End {
        let conn = self.resolve(host, to, options);
        let event = self.event(host);
        assert!(matches!(event, CmEvent::Resolved { conn: resolved } if resolved == conn));
        let end = self.make_qp(host, conn, config);
        let now = self.now();
        self.hosts[host].cm.connect(now, conn, params).expect("connect");
        end
    }

    pub fn resolve(&mut self, host: usize, to: SocketAddr, options: &ConnOptions) -> ConnId {
        let now = self.now();
        let timeout = Duration::from_secs(1);
        self.hosts[host].cm.resolve(now, to, timeout, options).expect("resolve")
    }

    pub fn make_qp(&mut self, host: usize, conn: ConnId, config: &QpConfig) -> End {
        let host_ref = &mut self.hosts[host];
        let handle = host_ref.group.handle();
        let qp = host_ref.cm.create_qp(conn, &handle, &host_ref.device, config).expect("create_qp");
        End { host, qp: host_ref.group.adopt(qp), conn }
    }

    /// Waits for the connection that a peer asks a host for.
    pub fn requested(&mut self, host: usize) -> (ConnId, ConnParams) {
        match self.event(host) {
            CmEvent::ConnectRequest { conn, params, .. } => (conn, params),
            other => panic!("no request but {other:?}"),
        }
    }

    pub fn accept(
        &mut self,
        host: usize,
        conn: ConnId,
        config: &QpConfig,
        params: &ConnParams,
    ) -> End {
        let end = self.make_qp(host, conn, config);
        let now = self.now();
        self.hosts[host].cm.accept(now, conn, params).expect("accept");
        end
    }

    pub fn established(&mut self, end: End) -> ConnParams {
        match self.event(end.host) {
            CmEvent::Established { conn, params } if conn == end.conn => params,
            other => panic!("not established but {other:?}"),
        }
    }

    /// Connects host 0 to host 1.
    pub fn connect(&mut self) -> (End, End) {
        self.connect_with(&ConnOptions::default(), &QP, &params())
    }

    pub fn connect_with(
        &mut self,
        options: &ConnOptions,
        config: &QpConfig,
        params: &ConnParams,
    ) -> (End, End) {
        let to = self.listen(1);
        let left = self.ask(0, to, options, config, params);
        let (conn, _) = self.requested(1);
        let right = self.accept(1, conn, config, params);
        self.established(left);
        self.established(right);
        (left, right)
    }

    pub fn send(&mut self, end: End, wr_id: u64, op: Op, flags: SendFlags, sges: &[Sge]) {
        let wr = SendWr { wr_id, op, flags: flags | SendFlags::SIGNALED, sges };
        // SAFETY: the tests keep their buffers until the end.
        unsafe { self.hosts[end.host].group.push_send(end.qp, &wr) }.expect("push_send");
    }

    pub fn recv(&mut self, end: End, wr_id: u64, sges: &[Sge]) {
        // SAFETY: the tests keep their buffers until the end.
        unsafe { self.hosts[end.host].group.push_recv(end.qp, &RecvWr { wr_id, sges }) }
            .expect("push_recv");
    }

    pub fn flush(&mut self, end: End) {
        let now = self.now();
        self.hosts[end.host].group.flush(now);
    }

    /// Sends one request and flushes.
    pub fn post(&mut self, end: End, wr_id: u64, op: Op, sges: &[Sge]) {
        self.send(end, wr_id, op, SendFlags::NONE, sges);
        self.flush(end);
    }
}

//! Two hosts that do anything at any time on a faulty network. Nothing panics, every request that
//! was taken completes exactly once, nothing is reported for what was released, and nothing is left
//! behind.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use rdma::sim::{Sim, SimConfig};
use rdma::{
    CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group, Op, QpConfig,
    QpKey, RecvWr, SendFlags, SendWr, Sge, Wc,
};

use super::benches::SimBench;
use super::buffer::{Buffer, pattern};
use super::world::{Host, World, params};

const SMALL: QpConfig =
    QpConfig { send_wr: 8, recv_wr: 8, send_sge: 2, recv_sge: 2, inline_bytes: 32 };
const MEMORY: usize = 1 << 16;

struct Chaos {
    world: World<SimBench>,
    random: Dice,
    sides: [Side; 2],
    /// Successes and failures, so that the run is known to have been one.
    outcomes: [u64; 2],
}

struct Side {
    listener: SocketAddr,
    memory: Buffer<Sim>,
    ends: BTreeMap<ConnId, Option<Queue>>,
    next_wr: u64,
}

struct Queue {
    qp: QpKey,
    qpn: u32,
    outstanding: BTreeSet<u64>,
}

/// Bytes of a pattern as dice.
struct Dice(Vec<u8>, usize);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(pattern(seed, 1 << 16), 0)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.1 = (self.1 + 3) % (self.0.len() - 3);
        let bytes = &self.0[self.1..self.1 + 3];
        (usize::from(bytes[0]) << 16 | usize::from(bytes[1]) << 8 | usize::from(bytes[2])) % bound
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.below(of.len())]) }
    }
}

fn faulty() -> SimConfig {
    SimConfig {
        loss_ppm: 30_000,
        duplication_ppm: 20_000,
        reordering_ppm: 50_000,
        corruption_ppm: 2_000,
        jitter: Duration::from_micros(30),
        ..SimConfig::default()
    }
}

impl Chaos {
    fn new(seed: u64) -> Self {
        let mut world = World::new(SimBench::new(seed, faulty()));
        let sides = [0, 1].map(|host| Side {
            listener: world.listen(host),
            memory: world.buffer(host, MEMORY),
            ends: BTreeMap::new(),
            next_wr: 0,
        });
        Self { world, random: Dice::new(seed), sides, outcomes: [0; 2] }
    }

    fn host(&mut self, host: usize) -> &mut Host<Sim> {
        &mut self.world.hosts[host]
    }

    /// Everybody does what there is to do.
    fn turn(&mut self) {
        let now = self.world.now();
        for host in [0, 1] {
            self.host(host).turn(now);
            while let Some(wc) = self.host(host).wcs.pop_front() {
                self.completed(host, &wc);
            }
            while let Some(event) = self.host(host).events.pop_front() {
                self.handle(host, event);
            }
        }
    }

    fn completed(&mut self, host: usize, wc: &Wc) {
        let queues = self.sides[host].ends.values_mut().flatten();
        let mut queues = queues.filter(|queue| queue.qpn == wc.qpn);
        let queue = queues.next().expect("a completion of a queue pair that was not released");
        assert!(queue.outstanding.remove(&wc.wr_id), "completed twice, or never asked for: {wc:?}");
        self.outcomes[usize::from(!wc.is_success())] += 1;
    }

    fn handle(&mut self, host: usize, event: CmEvent) {
        let dice = self.random.below(10);
        let now = self.world.now();
        match event {
            CmEvent::ConnectRequest { conn, .. } => match dice {
                0 => self.host(host).cm.close(conn),
                // The peer may have given up meanwhile: then an event says so.
                1 => {
                    if self.host(host).cm.reject(now, conn, b"no").is_err() {
                        self.sides[host].ends.insert(conn, None);
                    }
                }
                _ => {
                    self.make_qp(host, conn);
                    let _ = self.host(host).cm.accept(now, conn, &patience());
                }
            },
            CmEvent::Resolved { conn } => match dice {
                0 => self.close(host, conn),
                _ => {
                    self.make_qp(host, conn);
                    self.host(host).cm.connect(now, conn, &patience()).expect("connect");
                }
            },
            CmEvent::Established { .. } => {}
            CmEvent::Rejected { conn, .. }
            | CmEvent::ConnectFailed { conn, .. }
            | CmEvent::Disconnected { conn, .. } => self.close(host, conn),
            other => panic!("{other:?}"),
        }
    }

    fn make_qp(&mut self, host: usize, conn: ConnId) {
        let Host { group, cm, device, .. } = &mut self.world.hosts[host];
        let handle = group.handle();
        let qp = group.adopt(cm.create_qp(conn, &handle, device, &SMALL).expect("create_qp"));
        let queue = Queue { qp, qpn: group.qpn(qp), outstanding: BTreeSet::new() };
        self.sides[host].ends.insert(conn, Some(queue));
    }

    fn release(&mut self, host: usize, conn: ConnId) {
        if let Some(queue) = self.sides[host].ends.get_mut(&conn).and_then(Option::take) {
            self.host(host).group.release(queue.qp);
        }
    }

    fn close(&mut self, host: usize, conn: ConnId) {
        self.release(host, conn);
        self.sides[host].ends.remove(&conn);
        self.host(host).cm.close(conn);
    }

    fn ask(&mut self, host: usize) {
        let (now, to) = (self.world.now(), self.sides[1 - host].listener);
        let options = ConnOptions { ack_timeout_exponent: Some(10), ..ConnOptions::default() };
        let cm = &mut self.host(host).cm;
        let conn = cm.resolve(now, to, Duration::from_secs(1), &options).expect("resolve");
        self.sides[host].ends.insert(conn, None);
    }

    /// Does something to a random connection of a host.
    fn act(&mut self, host: usize) {
        let conns: Vec<ConnId> = self.sides[host].ends.keys().copied().collect();
        let Some(conn) = self.random.pick(&conns) else { return self.ask(host) };
        let now = self.world.now();
        match self.random.below(100) {
            0..4 => self.ask(host),
            4..6 => self.close(host, conn),
            6..9 => self.host(host).cm.disconnect(now, conn),
            9 => self.release(host, conn),
            10 => {
                if let Some(Some(queue)) = self.sides[host].ends.get(&conn) {
                    let qp = queue.qp;
                    self.host(host).group.fail(qp);
                }
            }
            11..50 => self.push(host, conn, true),
            _ => self.push(host, conn, false),
        }
    }

    fn push(&mut self, host: usize, conn: ConnId, receive: bool) {
        let theirs = &self.sides[1 - host].memory;
        let (there, rkey) = (theirs.addr(), theirs.rkey());
        let length = [0, 1, 64, 1024, 1025, 5000, 20_000][self.random.below(7)];
        let remote_addr = there + self.random.below(MEMORY - length) as u64;
        let wrong = u32::from(self.random.below(50) == 0);
        let op = match self.random.below(4) {
            0 => Op::RdmaWrite { remote_addr, rkey: rkey ^ wrong },
            1 => Op::RdmaRead { remote_addr, rkey: rkey ^ wrong },
            _ => Op::Send,
        };
        let side = &mut self.sides[host];
        let Some(Some(queue)) = side.ends.get_mut(&conn) else { return };
        let sges: [Sge; 1] = [side.memory.sge(0, if receive { 20_000 } else { length })];
        let wr_id = side.next_wr;
        side.next_wr += 1;
        let group = &mut self.world.hosts[host].group;
        // SAFETY: the memory lives as long as the devices.
        let pushed = unsafe {
            if receive {
                group.push_recv(queue.qp, &RecvWr { wr_id, sges: &sges })
            } else {
                let flags = SendFlags::SIGNALED;
                group.push_send(queue.qp, &SendWr { wr_id, op, flags, sges: &sges })
            }
        };
        if pushed.is_ok() {
            queue.outstanding.insert(wr_id);
        }
        let now = self.world.now();
        self.host(host).group.flush(now);
    }

    fn run(&mut self, actions: usize) {
        for _ in 0..actions {
            let host = self.random.below(2);
            self.act(host);
            for _ in 0..self.random.below(4) {
                self.turn();
                let step = Duration::from_micros(self.random.below(200) as u64);
                self.world.bench.advance(step);
            }
        }
    }

    /// Ends everything and looks what is left.
    fn finish(mut self) -> [u64; 2] {
        for host in [0, 1] {
            let queues = self.sides[host].ends.values().flatten();
            let qps: Vec<QpKey> = queues.map(|queue| queue.qp).collect();
            qps.into_iter().for_each(|qp| self.host(host).group.fail(qp));
        }
        self.turn();
        for side in &self.sides {
            let left: usize = side.ends.values().flatten().map(|q| q.outstanding.len()).sum();
            assert_eq!(left, 0, "requests that never completed");
        }
        for _ in 0..200 {
            self.turn();
            self.world.bench.advance(Duration::from_millis(500));
        }
        for host in [0, 1] {
            let conns: Vec<ConnId> = self.sides[host].ends.keys().copied().collect();
            conns.into_iter().for_each(|conn| self.close(host, conn));
        }
        for _ in 0..200 {
            self.turn();
            self.world.bench.advance(Duration::from_millis(500));
        }
        for host in &self.world.hosts {
            assert_eq!(host.device.stats().queue_pairs, 0);
            assert_eq!(host.group.deadline(), None, "an idle group is woken for nothing");
            assert_eq!(host.cm.deadline(), None, "an idle connection manager is woken for nothing");
        }
        self.outcomes
    }
}

fn patience() -> ConnParams {
    ConnParams { retry_count: 5, rnr_retry_count: 3, ..params() }
}

#[test]
fn anything_may_happen_at_any_time() {
    let mut outcomes = [0; 2];
    for seed in 0..150 {
        let mut chaos = Chaos::new(seed);
        chaos.run(400);
        let [successes, failures] = chaos.finish();
        outcomes = [outcomes[0] + successes, outcomes[1] + failures];
    }
    assert!(outcomes.iter().all(|&count| count > 5_000), "too little happened: {outcomes:?}");
}

//! Two ends with queue pairs between them, a network with faults, and a virtual clock.

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::vec;
use std::vec::Vec;

use splitmix64::SplitMix64;

use super::memory::{ALL, BASE, TestMemory};
use crate::rc::{
    ConnectionParams, LocalSge, Payload, QueuePair, QueuePairConfig, ReadBudget, RecvRequest,
    SendOp, SendOptions, SendRequest, SendWindow, SharedLimits, Transmit, WorkCompletion,
    datagram_cost,
};
use crate::wire::{Ecn, Message, Opcode, Packet, RnrTimer, Syndrome};
use crate::{PathMtu, Psn, Qpn, Time};

/// The key of all memory of an end.
pub(super) const KEY: u32 = 0x1234;

/// Ethernet, IPv4 and UDP.
const NETWORK_HEADERS: usize = 14 + 20 + 8;

pub(super) const SIGNALED: SendOptions =
    SendOptions { fence: false, signaled: true, solicited: false };
pub(super) const SILENT: SendOptions =
    SendOptions { fence: false, signaled: false, solicited: false };

/// Parameters of a pair.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) seed: u64,
    pub(super) mtu: PathMtu,
    pub(super) queue_pairs: usize,
    pub(super) memory_bytes: usize,
    pub(super) config: QueuePairConfig,
    pub(super) send_psn: [u32; 2],
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) ack_timeout_exponent: u8,
    pub(super) reads: u8,
    pub(super) read_budget: Option<u64>,
    /// Both ends agreed to report overflows.
    pub(super) reports_overflow: bool,
    /// Both ends agreed to recover selectively.
    pub(super) selective_recovery: bool,
    /// Each queue pair of an end has a window of its own, as if it were a process of its own.
    pub(super) own_windows: bool,
    pub(super) network: Network,
}

/// Latency, loss and other faults of the network. Chances are per million.
#[derive(Clone, Debug)]
pub(super) struct Network {
    pub(super) latency: Duration,
    pub(super) jitter: Duration,
    /// How many of those that leave at the same time may overtake a packet.
    pub(super) overtakers: u64,
    pub(super) loss_ppm: u64,
    pub(super) duplication_ppm: u64,
    /// The receive buffer of each end, as the kernel counts it.
    pub(super) buffer: u64,
    /// An end knows, and tells its peers, that its buffer was full.
    pub(super) reports_overflow: bool,
    /// How long an end takes for one packet.
    pub(super) service: Duration,
    /// The slowest link of each direction.
    pub(super) bottleneck: Option<Bottleneck>,
}

/// A link with a queue before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bottleneck {
    pub(super) bytes_per_second: u64,
    /// A packet that finds more bytes waiting than this is dropped.
    pub(super) queue: u64,
    /// A packet that finds more bytes waiting than this is marked.
    pub(super) mark_above: u64,
}

/// A queue before a link of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinkQueue {
    /// When it will be empty.
    empty_at: Time,
    pub(super) dropped: u64,
    pub(super) marked: u64,
    /// The sum of the bytes that each packet found waiting, and how many packets there were.
    pub(super) found: u64,
    pub(super) packets: u64,
}

impl LinkQueue {
    /// The same queue without measurements.
    pub(super) fn restarted(self) -> Self {
        Self { empty_at: self.empty_at, ..Self::default() }
    }

    /// A packet arrives at the queue: when it has left the link, and how it is marked then.
    fn pass(&mut self, now: Time, link: &Bottleneck, bytes: u64) -> Option<(Time, Ecn)> {
        const NANOS: u64 = 1_000_000_000;
        let waiting = (self.empty_at - now).as_nanos() as u64 * (link.bytes_per_second / 1_000)
            / (NANOS / 1_000);
        self.packets += 1;
        self.found += waiting;
        if waiting + bytes > link.queue {
            self.dropped += 1;
            return None;
        }
        let takes = Duration::from_nanos(bytes * NANOS / link.bytes_per_second);
        self.empty_at = self.empty_at.max(now) + takes;
        let marks = waiting > link.mark_above;
        self.marked += u64::from(marks);
        Some((self.empty_at, if marks { Ecn::Ce } else { Ecn::Ect0 }))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            mtu: PathMtu::Bytes1024,
            queue_pairs: 1,
            memory_bytes: 1 << 20,
            config: QueuePairConfig {
                send_wr: 64,
                recv_wr: 64,
                send_sge: 4,
                recv_sge: 4,
                inline_bytes: 64,
            },
            send_psn: [0x00AB_CDEF, 0x0012_3456],
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout_exponent: 14,
            reads: 16,
            read_budget: None,
            reports_overflow: true,
            selective_recovery: true,
            own_windows: false,
            network: Network {
                latency: Duration::from_micros(20),
                jitter: Duration::ZERO,
                overtakers: 0,
                loss_ppm: 0,
                duplication_ppm: 0,
                buffer: u64::MAX,
                reports_overflow: true,
                service: Duration::ZERO,
                bottleneck: None,
            },
        }
    }
}

pub(super) struct Pair {
    pub(super) now: Time,
    pub(super) ends: [End; 2],
    pub(super) network: Network,
    pub(super) rng: Rng,
    flying: BinaryHeap<Reverse<Flight>>,
    flights: u64,
    /// Every packet that left, lost ones included: from which end, and its opcode.
    pub(super) log: Vec<(usize, Opcode, Psn)>,
    /// Every packet that asked for an acknowledgement, and every one that raises the solicited
    /// event.
    pub(super) asking: Vec<Psn>,
    pub(super) solicited: Vec<Psn>,
    /// Every acknowledgement that left.
    pub(super) acknowledgements: Vec<(usize, Psn, Syndrome)>,
    /// Selective acknowledgements: the last packet before the missing one, the latest that came,
    /// and the bitmap.
    pub(super) selective: Vec<(Psn, Psn, Vec<u8>)>,
    /// Packets whose next copies are lost: from which end, and how many copies.
    pub(super) losses: BTreeMap<(usize, u32), u32>,
    /// Acknowledgements that carry BECN.
    pub(super) becn_acknowledgements: u64,
    /// Every READ response with a message sequence number that left, and that number.
    pub(super) responses: Vec<(Psn, u32)>,
    /// Packets that found no room.
    pub(super) overruns: u64,
    /// The queues before the slowest link, by sender.
    pub(super) queues: [LinkQueue; 2],
}

/// One end: its queue pairs and the limits that they share.
pub(super) struct End {
    pub(super) qps: Vec<QueuePair>,
    pub(super) memory: TestMemory,
    pub(super) windows: Vec<SendWindow>,
    pub(super) reads: ReadBudget,
    pub(super) completions: Vec<(usize, WorkCompletion)>,
    /// While set, nothing is done here: the process does not run.
    pub(super) asleep_until: Time,
    socket: VecDeque<(Vec<u8>, Ecn)>,
    socket_used: u64,
    overflowed_at: Option<Time>,
    serve_at: Time,
    /// When the socket was last empty.
    heard: Time,
    turn: usize,
}

/// A packet on its way. Ordered by time of arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flight {
    at: Time,
    number: u64,
    to: usize,
    datagram: Vec<u8>,
    ecn: Ecn,
}

/// Random numbers that follow from a seed.
pub(super) struct Rng(SplitMix64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(super) fn chance_ppm(&mut self, millionths: u64) -> bool {
        millionths > 0 && self.below(1_000_000) < millionths
    }

    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

impl Pair {
    /// Two ends whose queue pairs are connected one to one.
    pub(super) fn new(options: &Options) -> Self {
        let mut pair = Self::unconnected(options);
        for index in 0..options.queue_pairs {
            for end in 0..2 {
                pair.ends[end].qps[index].connect(&connection(options, end, index));
            }
        }
        pair
    }

    pub(super) fn unconnected(options: &Options) -> Self {
        Self {
            now: Time::from_nanos(1_000_000),
            ends: [End::new(options), End::new(options)],
            network: options.network.clone(),
            rng: Rng::new(options.seed),
            flying: BinaryHeap::new(),
            flights: 0,
            log: Vec::new(),
            asking: Vec::new(),
            solicited: Vec::new(),
            acknowledgements: Vec::new(),
            selective: Vec::new(),
            losses: BTreeMap::new(),
            becn_acknowledgements: 0,
            responses: Vec::new(),
            overruns: 0,
            queues: [LinkQueue::default(); 2],
        }
    }

    /// Posts a send request on queue pair 0 of `end`.
    pub(super) fn send(&mut self, end: usize, wr_id: u64, op: SendOp, sges: &[LocalSge]) {
        self.send_on(end, 0, wr_id, op, SIGNALED, sges);
    }

    pub(super) fn send_on(
        &mut self,
        end: usize,
        qp: usize,
        wr_id: u64,
        op: SendOp,
        flags: SendOptions,
        sges: &[LocalSge],
    ) {
        let request = SendRequest { wr_id, op, flags, payload: Payload::Regions(sges) };
        self.ends[end].qps[qp].post_send(&request).expect("the queue has room");
    }

    /// Posts a receive on queue pair 0 of `end`.
    pub(super) fn recv(&mut self, end: usize, wr_id: u64, sges: &[LocalSge]) {
        self.recv_on(end, 0, wr_id, sges);
    }

    pub(super) fn recv_on(&mut self, end: usize, qp: usize, wr_id: u64, sges: &[LocalSge]) {
        self.ends[end].qps[qp].post_recv(&RecvRequest { wr_id, sges }).expect("the queue has room");
    }

    /// Runs until nothing is left to do, or for at most `limit`.
    pub(super) fn run_for(&mut self, limit: Duration) {
        let end = self.now + limit;
        while let Some(next) = self.turn() {
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
        }
    }

    /// Runs until nothing is left to do; panics if that takes more than ten minutes of virtual
    /// time.
    pub(super) fn run(&mut self) {
        let start = self.now;
        self.run_for(Duration::from_secs(600));
        assert!(self.now - start < Duration::from_secs(600), "still busy after ten minutes");
    }

    /// Does all that is ready now; returns when there is more to do.
    pub(super) fn turn(&mut self) -> Option<Time> {
        while self.flying.peek().is_some_and(|Reverse(flight)| flight.at <= self.now) {
            if let Some(Reverse(flight)) = self.flying.pop() {
                self.arrive(flight.to, flight.datagram, flight.ecn);
            }
        }
        for end in 0..2 {
            if self.ends[end].asleep_until <= self.now {
                self.ends[end].receive(self.now, self.network.service);
                for datagram in self.ends[end].transmit(self.now) {
                    self.launch(end, datagram);
                }
            }
        }
        let arrival = self.flying.peek().map(|Reverse(flight)| flight.at);
        let wakes = self.ends.iter().filter_map(|end| end.wake_at(self.now));
        wakes.chain(arrival).min()
    }

    fn launch(&mut self, from: usize, datagram: Vec<u8>) {
        let packet = Packet::parse(&datagram).expect("sent packets parse");
        self.log.push((from, packet.message.opcode(), packet.bth.psn));
        if packet.bth.ack_request {
            self.asking.push(packet.bth.psn);
        }
        if packet.bth.solicited {
            self.solicited.push(packet.bth.psn);
        }
        if let Message::Acknowledge(aeth) = packet.message {
            self.acknowledgements.push((from, packet.bth.psn, aeth.syndrome));
            self.becn_acknowledgements += u64::from(packet.bth.becn);
        } else if let Message::SelectiveAcknowledge(_, latest) = packet.message {
            self.selective.push((packet.bth.psn, latest, packet.payload.to_vec()));
            self.becn_acknowledgements += u64::from(packet.bth.becn);
        } else if let Some(aeth) = packet.message.aeth() {
            self.responses.push((packet.bth.psn, aeth.msn));
        }
        let lost = self.losses.get_mut(&(from, packet.bth.psn.value())).is_some_and(|left| {
            let lost = *left > 0;
            *left = left.saturating_sub(1);
            lost
        });
        if lost || self.rng.chance_ppm(self.network.loss_ppm) {
            return;
        }
        let (leaves, ecn) = match self.network.bottleneck {
            None => (self.now, Ecn::Ect0),
            Some(link) => {
                let bytes = (datagram.len() + NETWORK_HEADERS) as u64;
                match self.queues[from].pass(self.now, &link, bytes) {
                    Some(passed) => passed,
                    None => return,
                }
            }
        };
        let copies = 1 + usize::from(self.rng.chance_ppm(self.network.duplication_ppm));
        for _ in 0..copies {
            let jitter = match self.network.jitter.as_nanos() as u64 {
                0 => 0,
                jitter => self.rng.below(jitter),
            };
            let at = leaves + self.network.latency + Duration::from_nanos(jitter);
            let behind = match self.network.overtakers {
                0 => 0,
                overtakers => self.rng.below(overtakers + 1),
            };
            let (number, to) = (self.flights + behind, 1 - from);
            self.flights += 1;
            let datagram = datagram.clone();
            self.flying.push(Reverse(Flight { at, number, to, datagram, ecn }));
        }
    }

    fn arrive(&mut self, to: usize, datagram: Vec<u8>, ecn: Ecn) {
        let end = &mut self.ends[to];
        let cost = datagram_cost(datagram.len());
        if end.socket_used.saturating_add(cost) > self.network.buffer {
            self.overruns += 1;
            end.overflowed_at = self.network.reports_overflow.then_some(self.now);
            return;
        }
        if end.socket.is_empty() {
            end.serve_at = end.serve_at.max(self.now + self.network.service);
        }
        end.socket_used += cost;
        end.socket.push_back((datagram, ecn));
    }

    /// Forgets which packets left so far.
    pub(super) fn forget_packets(&mut self) {
        self.log.clear();
        self.asking.clear();
        self.acknowledgements.clear();
        self.selective.clear();
        self.responses.clear();
    }

    /// Loses packets that are on their way.
    pub(super) fn lose_in_flight(&mut self, lost: impl Fn(u32) -> bool) {
        let flying = core::mem::take(&mut self.flying).into_vec();
        let kept = flying.into_iter().filter(|Reverse(flight)| {
            let packet = Packet::parse(&flight.datagram).expect("sent packets parse");
            !lost(packet.bth.psn.value())
        });
        self.flying = kept.collect();
    }

    /// Completions that `end` polled so far, for queue pair 0.
    pub(super) fn completions(&self, end: usize) -> Vec<WorkCompletion> {
        self.ends[end].completions.iter().map(|(_, completion)| *completion).collect()
    }

    /// Packets with this opcode that left `end`.
    pub(super) fn count(&self, end: usize, opcode: Opcode) -> usize {
        self.log.iter().filter(|(from, sent, _)| *from == end && *sent == opcode).count()
    }

    /// Takes queue pair 0 of `end` to ERROR.
    pub(super) fn fail(&mut self, end: usize) {
        let End { qps, windows, reads, .. } = &mut self.ends[end];
        let window = &mut windows[0];
        qps[0].fail(&mut SharedLimits { window, reads, overflowed: false });
    }
}

impl End {
    fn new(options: &Options) -> Self {
        let mut memory = TestMemory::new(options.memory_bytes);
        memory.open(KEY, 0, options.memory_bytes, ALL);
        Self {
            qps: (0..options.queue_pairs)
                .map(|index| QueuePair::new(qpn(index), &options.config))
                .collect(),
            memory,
            windows: vec![
                SendWindow::new();
                if options.own_windows { options.queue_pairs } else { 1 }
            ],
            reads: options.read_budget.map_or(ReadBudget::unlimited(), ReadBudget::new),
            completions: Vec::new(),
            asleep_until: Time::ZERO,
            socket: VecDeque::new(),
            socket_used: 0,
            overflowed_at: None,
            serve_at: Time::ZERO,
            heard: Time::ZERO,
            turn: 0,
        }
    }

    /// Whether the socket dropped packets in the last 50 ms.
    fn overflowed_lately(&self, now: Time) -> bool {
        self.overflowed_at.is_some_and(|at| now - at < Duration::from_millis(50))
    }

    /// Bytes that all windows together have in flight.
    pub(super) fn in_flight(&self) -> u64 {
        self.windows.iter().map(SendWindow::in_flight).sum()
    }

    fn wake_at(&self, now: Time) -> Option<Time> {
        let deadlines = self.qps.iter().filter_map(QueuePair::deadline);
        let due = match self.socket.is_empty() {
            true => deadlines.chain(self.reads.forgets_at()).min()?,
            false => self.serve_at,
        };
        Some(due.max(self.asleep_until).max(now))
    }

    fn receive(&mut self, now: Time, service: Duration) {
        while !self.socket.is_empty() && self.serve_at <= now {
            if let Some((datagram, ecn)) = self.socket.pop_front() {
                self.socket_used -= datagram_cost(datagram.len());
                self.serve_at = if service.is_zero() { now } else { self.serve_at + service };
                self.deliver_marked(now, &datagram, ecn);
            }
        }
        if self.socket.is_empty() {
            self.heard = now;
        }
        let heard = self.heard;
        self.reads.forget(heard);
        let (windows, overflowed) = (self.windows.len(), self.overflowed_lately(now));
        for (index, qp) in self.qps.iter_mut().enumerate() {
            let window = &mut self.windows[index % windows];
            let mut limits = SharedLimits { window, reads: &mut self.reads, overflowed };
            if qp.deadline().is_some_and(|deadline| deadline <= heard) {
                qp.handle_deadline(heard, &mut limits);
            }
        }
        self.reap();
    }

    pub(super) fn deliver(&mut self, now: Time, datagram: &[u8]) {
        self.deliver_marked(now, datagram, Ecn::Ect0);
    }

    pub(super) fn deliver_marked(&mut self, now: Time, datagram: &[u8], ecn: Ecn) {
        let packet = Packet::parse(datagram).expect("arrived packets parse");
        let to = packet.bth.dest_qpn;
        if let Some(index) = self.qps.iter().position(|qp| qp.qpn() == to) {
            let (windows, overflowed) = (self.windows.len(), self.overflowed_lately(now));
            let window = &mut self.windows[index % windows];
            let mut limits = SharedLimits { window, reads: &mut self.reads, overflowed };
            let qp = &mut self.qps[index];
            if ecn == Ecn::Ce {
                qp.handle_congestion(now, &packet, &mut limits);
            }
            qp.handle_packet(now, &packet, &mut self.memory, &mut limits);
        }
    }

    fn transmit(&mut self, now: Time) -> Vec<Vec<u8>> {
        let mut sent = vec![];
        let mut out = Transmit::new();
        let (count, overflowed) = (self.qps.len(), self.overflowed_lately(now));
        let mut idle = 0;
        while idle < count {
            let qp = &mut self.qps[self.turn % count];
            let windows = self.windows.len();
            let window = &mut self.windows[self.turn % count % windows];
            self.turn += 1;
            let mut limits = SharedLimits { window, reads: &mut self.reads, overflowed };
            if qp.wants_transmit() && qp.poll_transmit(now, &mut self.memory, &mut limits, &mut out)
            {
                sent.push(assemble(&out, &self.memory));
                idle = 0;
            } else {
                idle += 1;
            }
        }
        self.reap();
        sent
    }

    fn reap(&mut self) {
        for (index, qp) in self.qps.iter_mut().enumerate() {
            while let Some(completion) = qp.poll_completion() {
                self.completions.push((index, completion));
            }
        }
    }
}

pub(super) fn connection(options: &Options, end: usize, index: usize) -> ConnectionParams {
    ConnectionParams {
        remote_qpn: qpn(index),
        path_mtu: options.mtu,
        send_psn: Psn::new(options.send_psn[end]),
        recv_psn: Psn::new(options.send_psn[1 - end]),
        retry_count: options.retry_count,
        rnr_retry_count: options.rnr_retry_count,
        ack_timeout_exponent: options.ack_timeout_exponent,
        min_rnr_timer: RnrTimer::new(12),
        initiator_depth: options.reads,
        responder_resources: options.reads,
        reports_overflow: options.reports_overflow,
        selective_recovery: options.selective_recovery,
    }
}

pub(super) const fn qpn(index: usize) -> Qpn {
    Qpn::new(0x100 + index as u32)
}

/// `length` bytes at `offset` of an end's memory.
pub(super) const fn sge(offset: usize, length: usize) -> LocalSge {
    LocalSge { addr: BASE + offset as u64, length: length as u32, lkey: KEY }
}

pub(super) const fn write_to(offset: usize) -> SendOp {
    SendOp::RdmaWrite { remote_addr: BASE + offset as u64, rkey: KEY }
}

pub(super) const fn read_from(offset: usize) -> SendOp {
    SendOp::RdmaRead { remote_addr: BASE + offset as u64, rkey: KEY }
}

/// Puts a packet together as a provider does, without an invariant CRC.
fn assemble(out: &Transmit, memory: &TestMemory) -> Vec<u8> {
    let mut datagram = out.headers().to_vec();
    for piece in out.pieces() {
        datagram.extend_from_slice(memory.slice(piece.addr, piece.length));
    }
    datagram.extend_from_slice(&[0; 3][..out.pad_bytes()]);
    datagram.extend_from_slice(&[0; 4]);
    assert_eq!(datagram.len(), out.datagram_bytes());
    datagram
}

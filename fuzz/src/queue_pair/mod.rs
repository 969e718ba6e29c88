//! Two connected queue pairs, the calls of their users, and a network that does anything to
//! packets.

mod forge;
mod memory;

use std::collections::VecDeque;
use std::time::Duration;

use roce_proto::rc::{
    BindWindow, CompletedWork, ConnectionParams, LocalSge, Payload, PostError, QueuePair,
    QueuePairConfig, QueuePairState, ReadBudget, RecvRequest, SendOp, SendOptions, SendRequest,
    SendWindow, SharedLimits, Transmit, WorkCompletion, WorkStatus,
};
use roce_proto::wire::{Packet, RnrTimer};
use roce_proto::{PathMtu, Psn, Qpn, Time};

use self::memory::{
    BASE, BYTES, Modelled, Posted, SHARED, SHARED_KEY, SINK, SINK_KEY, SOURCE, SOURCE_KEY,
};
use crate::input::Input;

/// Requests in each queue.
const DEPTH: u32 = 8;
/// Where one receive or READ puts something: each queue has as many places as requests, and a half
/// of the sink.
const PLACE_BYTES: usize = SINK.end.abs_diff(SINK.start) / 2 / DEPTH as usize;
const INLINE_BYTES: usize = 64;
/// The most packets in transit between the two ends.
const FLYING_MAX: usize = 64;
const OPERATIONS_MAX: usize = 400;
/// Exchanges after which an undisturbed connection has done all it was asked.
const ROUNDS_MAX: usize = 1000;

/// Runs a sequence of operations of eight bytes each, after as many about the connection.
///
/// Must hold: nothing is written but by a request that has not completed or under a key that the
/// peer was given; nothing is sent but under a key; each request completes once and in its turn; a
/// queue pair's parts of shared limits are given back. While packets are only lost, repeated and
/// overtaken, the bytes that arrive are those that were sent, and in the end all requests complete.
pub fn run(data: &[u8]) {
    play(data).end();
}

/// Does all operations, until nothing is left to do.
fn play(data: &[u8]) -> QueuePairWorld {
    let mut input = Input::new(data);
    let mut world = QueuePairWorld::new(&mut Input::new(input.slice(8)));
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        let mut operation = Input::new(input.slice(8));
        world.operate(&mut operation);
    }
    world.settle();
    world
}

struct QueuePairWorld {
    now: Time,
    ends: [QueuePairEnd; 2],
    /// Packets are lost, repeated and overtaken at most, and no memory is taken away.
    honest: bool,
    /// Receives and READs whose bytes were compared.
    compared: u64,
}

struct QueuePairEnd {
    qp: QueuePair,
    memory: Modelled,
    window: SendWindow,
    reads: ReadBudget,
    /// Packets for this end.
    flying: VecDeque<Vec<u8>>,
    /// Messages that were sent to this end and have not been received.
    messages: VecDeque<Vec<u8>>,
    /// Place of the peer's memory that each READ posted here reads.
    reading: VecDeque<(u64, usize)>,
    next_send: u64,
    next_receive: u64,
    /// Close to the number that this end expects from its peer.
    latest_psn: Psn,
}

impl QueuePairWorld {
    fn new(input: &mut Input<'_>) -> Self {
        let [mtu, retries, psn_a, psn_b] = input.array();
        let (mtu, selective_recovery) = (PathMtu::ALL[usize::from(mtu) % 3], mtu < 0x80);
        // Most sequences begin shortly before the numbers wrap.
        let psns = [psn_a, psn_b].map(|psn| Psn::new(0xFF_FFFF).minus(u32::from(psn) % 32));
        let end = |index: usize| {
            let config = QueuePairConfig {
                send_wr: DEPTH,
                recv_wr: DEPTH,
                send_sge: 2,
                recv_sge: 2,
                inline_bytes: INLINE_BYTES as u32,
            };
            let mut qp = QueuePair::new(qpn(index), &config);
            qp.connect(&ConnectionParams {
                remote_qpn: qpn(1 - index),
                path_mtu: mtu,
                send_psn: psns[index],
                recv_psn: psns[1 - index],
                retry_count: retries & 7,
                rnr_retry_count: retries >> 3 & 7,
                ack_timeout_exponent: 14,
                min_rnr_timer: RnrTimer::new(12),
                initiator_depth: retries >> 6,
                responder_resources: 3,
                reports_overflow: true,
                selective_recovery,
            });
            QueuePairEnd {
                qp,
                memory: Modelled::new(),
                window: SendWindow::new(),
                reads: ReadBudget::new(50_000),
                flying: VecDeque::new(),
                messages: VecDeque::new(),
                reading: VecDeque::new(),
                next_send: 0,
                next_receive: 0,
                latest_psn: psns[1 - index],
            }
        };
        Self { now: Time::from_nanos(1_000_000), ends: [end(0), end(1)], honest: true, compared: 0 }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        let (what, end) = (input.choice(13), input.choice(2));
        match what {
            0 => self.post_send(end, input),
            1 => self.post_recv(end, input),
            2 => {
                self.transmit(end, 1 + input.choice(8));
            }
            3 => self.deliver(end, usize::from(input.u8()), input.u8() & 1 == 1),
            4 => self.deliver_all(end),
            5 => drop(self.take(end, input)),
            6 => {
                if let Some(packet) = self.take(end, input) {
                    self.ends[end].flying.push_front(packet.clone());
                    self.ends[end].flying.push_back(packet);
                }
            }
            7 => self.corrupt(end, input),
            8 => self.forge(end, input),
            9 => self.pass(Duration::from_nanos(1 << (input.u8() % 34))),
            10 => self.pass_to_deadline(),
            11 => {
                self.honest = false;
                self.ends[end].fail();
                self.reap(end);
            }
            _ => {
                self.honest = false;
                let memory = &mut self.ends[end].memory;
                if input.u8() & 1 == 0 { memory.unshare() } else { memory.share() }
            }
        }
    }

    fn post_send(&mut self, end: usize, input: &mut Input<'_>) {
        let (kind, flags) = (input.u8() % 7, input.u8());
        let length = usize::from(input.u16());
        let offset = usize::from(input.u16());
        let QueuePairEnd { memory, next_send, qp, .. } = &mut self.ends[end];
        let wr_id = *next_send;
        let rkey = if flags & 8 == 0 { SHARED_KEY } else { SOURCE_KEY };
        let remote = if flags & 16 == 0 { SHARED } else { SOURCE };
        let remote_addr = BASE + remote.start as u64 + offset as u64 % 5000;
        let source = source(offset, length % 3000, flags & 32 != 0);
        let sink = place(SINK.start, wr_id, length % (PLACE_BYTES + 1), flags & 32 != 0);
        let inline = &memory.bytes[..length % (INLINE_BYTES + 2)].to_vec()[..];
        let inline_pieces = [inline];
        let window = 100 + u32::from(flags >> 6);
        let (op, payload) = match kind {
            0 => (SendOp::Send, Payload::Regions(&source)),
            1 => (SendOp::SendWithInvalidate { rkey: window }, Payload::Regions(&source)),
            2 => (SendOp::RdmaWrite { remote_addr, rkey }, Payload::Regions(&source)),
            3 => (SendOp::RdmaRead { remote_addr, rkey }, Payload::Regions(&sink)),
            4 => (SendOp::Send, Payload::Inline(&inline_pieces)),
            5 => (SendOp::Bind(bind(window, offset, length)), Payload::Regions(&[])),
            _ => (SendOp::LocalInvalidate { rkey: window }, Payload::Regions(&[])),
        };
        let is_read = kind == 3;
        let message = match (op, payload) {
            (SendOp::Send | SendOp::SendWithInvalidate { .. }, Payload::Regions(pieces)) => {
                Some(memory.gather(pieces))
            }
            (SendOp::Send, Payload::Inline(_)) => Some(inline.to_vec()),
            _ => None,
        };
        let signaled = flags & 1 != 0;
        let flags = SendOptions { signaled, fence: flags & 2 != 0, solicited: flags & 4 != 0 };
        match qp.post_send(&SendRequest { wr_id, op, flags, payload }) {
            Ok(()) => {
                *next_send += 1;
                let sinks = if is_read { sink.to_vec() } else { Vec::new() };
                memory.sends.push_back(Posted { wr_id, signaled, sinks });
                if is_read {
                    self.ends[end].reading.push_back((wr_id, (remote_addr - BASE) as usize));
                }
                self.ends[1 - end].messages.extend(message);
            }
            Err(PostError::QueueFull | PostError::InlineTooLong) => {}
            Err(error) => panic!("{error}"),
        }
        self.reap(end);
    }

    fn post_recv(&mut self, end: usize, input: &mut Input<'_>) {
        let split = input.u8() & 1 != 0;
        let length = usize::from(input.u16()) % (PLACE_BYTES + 1);
        self.receive_into(end, length, split);
    }

    fn receive_into(&mut self, end: usize, length: usize, split: bool) {
        let QueuePairEnd { memory, next_receive, qp, .. } = &mut self.ends[end];
        let wr_id = *next_receive;
        let middle = SINK.start.midpoint(SINK.end);
        let sges = place(middle, wr_id, length, split);
        match qp.post_recv(&RecvRequest { wr_id, sges: &sges }) {
            Ok(()) => {
                *next_receive += 1;
                memory.receives.push(Posted { wr_id, signaled: true, sinks: sges.to_vec() });
            }
            Err(PostError::QueueFull) => {}
            Err(error) => panic!("{error}"),
        }
        self.reap(end);
    }

    /// Sends the packets of `end` on their way.
    fn transmit(&mut self, end: usize, most: usize) -> bool {
        let mut out = Transmit::new();
        let mut any = false;
        for _ in 0..most {
            let QueuePairEnd { qp, memory, window, reads, .. } = &mut self.ends[end];
            let mut limits = SharedLimits { window, reads, overflowed: false };
            if !qp.poll_transmit(self.now, memory, &mut limits, &mut out) {
                break;
            }
            any = true;
            let datagram = assemble(&out, memory);
            let packet = Packet::parse(&datagram).expect("sent packets parse");
            let peer = &mut self.ends[1 - end];
            peer.latest_psn = packet.bth.psn;
            if peer.flying.len() < FLYING_MAX {
                peer.flying.push_back(datagram);
            }
        }
        self.reap(end);
        any
    }

    fn take(&mut self, end: usize, input: &mut Input<'_>) -> Option<Vec<u8>> {
        let flying = &mut self.ends[end].flying;
        let index = usize::from(input.u8()).checked_rem(flying.len())?;
        flying.remove(index)
    }

    fn corrupt(&mut self, end: usize, input: &mut Input<'_>) {
        if let Some(mut packet) = self.take(end, input) {
            self.honest = false;
            let (value, at) = (input.u8(), usize::from(input.u16()));
            // The headers are where most of the meaning is.
            let reach = if at & 0x8000 == 0 { 32.min(packet.len()) } else { packet.len() };
            packet[(at & 0x7FFF) % reach] ^= value;
            self.ends[end].flying.push_front(packet);
        }
    }

    fn forge(&mut self, end: usize, input: &mut Input<'_>) {
        self.honest = false;
        let packet = forge::packet(qpn(end), self.ends[end].latest_psn, input);
        self.ends[end].flying.push_front(packet);
    }

    /// Delivers a packet, which a queue on its way `marked`.
    fn deliver(&mut self, end: usize, index: usize, marked: bool) {
        let now = self.now;
        let QueuePairEnd { qp, memory, window, reads, flying, .. } = &mut self.ends[end];
        let Some(index) = index.checked_rem(flying.len()) else { return };
        let Some(datagram) = flying.remove(index) else { return };
        let Ok(packet) = Packet::parse(&datagram) else { return };
        if packet.bth.dest_qpn == qp.qpn() {
            let limits = &mut SharedLimits { window, reads, overflowed: false };
            if marked {
                qp.handle_congestion(now, &packet, limits);
            }
            qp.handle_packet(now, &packet, memory, limits);
        }
        self.reap(end);
    }

    fn deliver_all(&mut self, end: usize) {
        for _ in 0..self.ends[end].flying.len() {
            self.deliver(end, 0, false);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        for end in 0..2 {
            let QueuePairEnd { qp, window, reads, .. } = &mut self.ends[end];
            reads.forget(self.now);
            if qp.deadline().is_some_and(|deadline| deadline <= self.now) {
                qp.handle_deadline(
                    self.now,
                    &mut SharedLimits { window, reads, overflowed: false },
                );
                let later = qp.deadline().is_none_or(|deadline| deadline > self.now);
                assert!(later || qp.wants_transmit(), "a deadline that was met is cleared");
            }
            self.reap(end);
        }
    }

    fn pass_to_deadline(&mut self) {
        let deadlines = self.ends.iter().filter_map(|end| end.qp.deadline());
        if let Some(deadline) = deadlines.min() {
            self.pass(deadline - self.now);
        }
    }

    fn reap(&mut self, end: usize) {
        while let Some(completion) = self.ends[end].qp.poll_completion() {
            let posted = self.ends[end].memory.complete(&completion);
            if self.honest && completion.status == WorkStatus::Success {
                self.compare(end, &completion, &posted);
            }
        }
    }

    /// The bytes that arrived are those that were sent.
    fn compare(&mut self, end: usize, completion: &WorkCompletion, posted: &Posted) {
        let arrived = self.ends[end].memory.gather(&posted.sinks);
        match completion.work {
            CompletedWork::Receive => {
                let message = self.ends[end].messages.pop_front().expect("a message was sent");
                assert_eq!(completion.byte_length as usize, message.len());
                assert_eq!(arrived[..message.len()], message);
                self.compared += 1;
            }
            CompletedWork::RdmaRead => {
                let reading = &mut self.ends[end].reading;
                while reading.front().is_some_and(|(wr_id, _)| *wr_id < completion.wr_id) {
                    reading.pop_front();
                }
                let (_, start) = reading.pop_front().expect("it was posted");
                let read = start..start + arrived.len();
                if SOURCE.contains(&read.start) && read.end <= SOURCE.end {
                    assert_eq!(arrived, self.ends[1 - end].memory.bytes[read]);
                    self.compared += 1;
                }
            }
            _ => {}
        }
    }

    /// Runs without disturbance until all requests are done, or have failed.
    fn settle(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut busy = false;
            for end in 0..2 {
                for _ in self.ends[end].memory.receives.len()..DEPTH as usize {
                    self.receive_into(end, PLACE_BYTES, false);
                }
                busy |= self.transmit(end, FLYING_MAX / 2);
                busy |= !self.ends[1 - end].flying.is_empty();
                self.deliver_all(1 - end);
            }
            if !busy && self.ends.iter().all(|end| end.qp.deadline().is_none()) {
                break;
            }
            if !busy {
                self.pass_to_deadline();
            }
        }
        let waits = |end: &QueuePairEnd| end.memory.sends.iter().any(|posted| posted.signaled);
        assert!(!self.honest || !self.ends.iter().any(waits), "a request never completed");
    }

    fn end(mut self) {
        for end in 0..2 {
            self.ends[end].fail();
            self.reap(end);
            let QueuePairEnd { memory, window, reads, qp, .. } = &self.ends[end];
            assert_eq!(qp.state(), QueuePairState::Error);
            let left = memory.sends.iter().chain(&memory.receives).find(|posted| posted.signaled);
            assert!(left.is_none(), "{left:?} never completed");
            assert_eq!((window.in_flight(), reads.used()), (0, 0), "shared limits are given back");
            let source = &memory.bytes[SOURCE];
            assert!(source.iter().enumerate().all(|(at, byte)| *byte == (at ^ at >> 8) as u8));
        }
    }
}

impl QueuePairEnd {
    fn fail(&mut self) {
        let Self { qp, window, reads, .. } = self;
        qp.fail(&mut SharedLimits { window, reads, overflowed: false });
    }
}

const fn qpn(index: usize) -> Qpn {
    Qpn::new(0x100 + index as u32)
}

/// One or two pieces that lie behind one another.
fn pieces(start: usize, length: usize, lkey: u32, split: bool) -> Vec<LocalSge> {
    let first = if split { length / 3 } else { length };
    let piece =
        |at: usize, length: usize| LocalSge { addr: BASE + at as u64, length: length as u32, lkey };
    let all = [piece(start, first), piece(start + first, length - first)];
    all[..1 + usize::from(split)].to_vec()
}

fn source(offset: usize, length: usize, split: bool) -> Vec<LocalSge> {
    pieces(offset % (SOURCE.end - length), length, SOURCE_KEY, split)
}

fn place(half: usize, wr_id: u64, length: usize, split: bool) -> Vec<LocalSge> {
    let index = wr_id as usize % DEPTH as usize;
    pieces(half + index * PLACE_BYTES, length, SINK_KEY, split)
}

fn bind(rkey: u32, offset: usize, length: usize) -> BindWindow {
    const REMOTE: u32 = 6;
    BindWindow {
        window: u64::from(rkey),
        rkey,
        region: u64::from(SHARED_KEY),
        addr: BASE + (SHARED.start + offset % 5000) as u64,
        length: length as u64 % 5000,
        access: REMOTE,
    }
}

/// A packet as a provider puts it together, without an invariant CRC.
fn assemble(out: &Transmit, memory: &Modelled) -> Vec<u8> {
    let mut datagram = out.headers().to_vec();
    for piece in out.pieces() {
        datagram.extend_from_slice(memory.piece(piece));
    }
    datagram.extend_from_slice(&[0; 3][..out.pad_bytes()]);
    datagram.extend_from_slice(&[0; 4]);
    assert_eq!(datagram.len(), out.datagram_bytes());
    assert!(BYTES >= datagram.len());
    datagram
}

#[cfg(test)]
mod tests {
    use roce_proto::rc::{Memory, MemoryKey, ReceivedInfo};

    use super::*;
    use crate::{TARGETS, corpus};

    #[test]
    fn scripts_match_their_names() {
        let target = TARGETS.iter().find(|target| target.name == "queue_pair").unwrap();
        let folder = corpus::folder(target);
        for (name, compared) in [
            ("send", 1),
            ("send-of-many-packets", 1),
            ("read", 1),
            ("inline", 1),
            ("loss", 1),
            ("write", 0),
        ] {
            let world = play(&std::fs::read(folder.join(name)).unwrap());
            assert!(world.honest);
            assert_eq!(world.compared, compared, "{name}");
        }
        let world = play(&std::fs::read(folder.join("write")).unwrap());
        let [a, b] = world.ends.map(|end| end.memory.bytes);
        assert_eq!(b[SHARED.start..][..2000], a[..2000]);
    }

    #[test]
    #[should_panic(expected = "no request wants them")]
    fn stray_writes_are_detected() {
        let mut memory = Modelled::new();
        let key = MemoryKey::Local { lkey: SINK_KEY };
        let _ = memory.place(key, BASE + SINK.start as u64, &[1]);
    }

    #[test]
    #[should_panic(expected = "the turn of a different receive")]
    fn a_receive_out_of_turn_is_noticed() {
        let mut memory = Modelled::new();
        post(&mut memory, 0);
        post(&mut memory, 1);
        memory.complete(&received(0));
    }

    #[test]
    fn a_message_stays_in_its_receive() {
        let mut memory = Modelled::new();
        post(&mut memory, 0);
        post(&mut memory, 1);
        let newest = sinks(1)[0].addr;
        memory.place(MemoryKey::Local { lkey: SINK_KEY }, newest, &[1]).unwrap();
        post(&mut memory, 2);
        for wr_id in [1, 2, 0] {
            memory.complete(&received(wr_id));
        }
    }

    fn post(memory: &mut Modelled, wr_id: u64) {
        memory.receives.push(Posted { wr_id, signaled: true, sinks: sinks(wr_id) });
    }

    fn sinks(wr_id: u64) -> Vec<LocalSge> {
        place(SINK.start.midpoint(SINK.end), wr_id, PLACE_BYTES, false)
    }

    fn received(wr_id: u64) -> WorkCompletion {
        let (status, work) = (WorkStatus::Success, CompletedWork::Receive);
        WorkCompletion { wr_id, status, work, byte_length: 1, received: ReceivedInfo::Plain }
    }

    #[test]
    #[should_panic(expected = "no request waits")]
    fn a_second_completion_is_noticed() {
        let mut world = play(&[]);
        let mut completion = None;
        world.receive_into(0, 8, false);
        world.ends[0].fail();
        while let Some(next) = world.ends[0].qp.poll_completion() {
            world.ends[0].memory.complete(&next);
            completion = Some(next);
        }
        world.ends[0].memory.complete(&completion.unwrap());
    }
}

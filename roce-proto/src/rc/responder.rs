//! The responder: executes the peer's requests.
//!
//! A request packet passes a chain of checks, each with its own NAK: PSN, place in its message,
//! length, receive, access. Nothing is placed or changed before all have passed.

use alloc::boxed::Box;

use crate::deliberate_bugs::{self, Bug};
use crate::rc::completions::Completions;
use crate::rc::received_ahead::ReceivedAhead;
use crate::rc::recv_queue::RecvQueue;
use crate::rc::replies::{LatestReads, ReadReply, Replies};
use crate::rc::{
    CompletedWork, ConnectionParams, Memory, MemoryKey, PayloadPiece, QueuePairConfig,
    QueuePairCounters, READS_MAX, ReceivedInfo, RecvRequest, RemoteAccess, Transmit,
    WorkCompletion, WorkStatus, sge,
};
use crate::wire::{Aeth, Bth, Message, NakCode, Packet, Reth, RnrTimer, Syndrome, Tail};
use crate::{Psn, Qpn};

/// Maximum length of an RDMA READ or WRITE in the specification.
const DMA_MAX_BYTES: u32 = 1 << 31;

/// Maximum number of packets of one READ response. A longer one, possible with a path MTU of 256
/// bytes, would take half of the PSN space.
const READ_PACKETS_MAX: u32 = 1 << 22;

#[derive(Debug)]
pub(super) struct Responder {
    pub(super) queue: RecvQueue,
    /// PSN of the next new request packet.
    expected: Psn,
    /// Message sequence number: number of completed messages, modulo 2^24.
    msn: u32,
    /// The message that has arrived in part.
    incoming: IncomingMessage,
    replies: Replies,
    latest_reads: LatestReads,
    /// The acknowledgement to send after all pending READ responses.
    answer: Option<PacketAnswer>,
    /// The NAK with which the queue pair went to ERROR.
    refusal: Option<PacketAnswer>,
    /// Whether a gap was reported that is not filled yet.
    gap: bool,
    /// Packets received after a gap, if the peer agreed to selective recovery.
    ahead: Option<Box<ReceivedAhead>>,
    mtu: u32,
    peer: Qpn,
    resources: usize,
    rnr_timer: RnrTimer,
    /// Whether the peer is notified when our receive buffer overflows.
    reports_overflow: bool,
}

/// A message whose first packet has arrived and whose last has not.
#[derive(Clone, Copy, Debug)]
enum IncomingMessage {
    None,
    /// A SEND; `received` bytes of it have been placed.
    Send {
        received: u32,
    },
    /// An RDMA WRITE of `length` bytes, whose remaining bytes go to `addr`.
    Write {
        addr: u64,
        rkey: u32,
        length: u32,
        remaining: u32,
    },
}

#[derive(Clone, Copy, Debug)]
enum PacketAnswer {
    /// Acknowledges everything before the expected packet.
    Ack,
    Nak(Psn, Syndrome),
}

/// The reason why a request packet is not executed.
#[derive(Clone, Copy, Debug)]
enum RequestError {
    /// No receive is posted: RNR NAK.
    NotReady,
    Refused(FatalError),
}

/// A NAK that fails the queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct FatalError {
    code: NakCode,
    /// Status of the receive of the message, if it is not flushed.
    pub(super) receive: Option<WorkStatus>,
}

impl FatalError {
    const INVALID: RequestError = Self::plain(NakCode::INVALID_REQUEST);
    const ACCESS: RequestError = Self::plain(NakCode::REMOTE_ACCESS);

    const fn plain(code: NakCode) -> RequestError {
        RequestError::Refused(Self { code, receive: None })
    }

    const fn with_receive(code: NakCode, status: WorkStatus) -> RequestError {
        RequestError::Refused(Self { code, receive: Some(status) })
    }
}

/// The parts of the queue pair that the execution of a request packet uses.
pub(super) struct RequestContext<'a, M> {
    pub(super) qpn: Qpn,
    pub(super) memory: &'a mut M,
    pub(super) completions: &'a mut Completions,
    pub(super) counters: &'a mut QueuePairCounters,
}

impl Responder {
    pub(super) fn new(config: &QueuePairConfig) -> Self {
        Self {
            queue: RecvQueue::new(config),
            expected: Psn::new(0),
            msn: 0,
            incoming: IncomingMessage::None,
            replies: Replies::new(),
            latest_reads: LatestReads::new(),
            answer: None,
            refusal: None,
            gap: false,
            ahead: None,
            mtu: 256,
            peer: Qpn::new(0),
            resources: 0,
            rnr_timer: RnrTimer::new(0),
            reports_overflow: false,
        }
    }

    pub(super) fn connect(&mut self, connection: &ConnectionParams) {
        self.expected = connection.recv_psn;
        self.mtu = connection.path_mtu.bytes() as u32;
        self.peer = connection.remote_qpn;
        self.resources = usize::from(connection.responder_resources).min(READS_MAX);
        self.rnr_timer = connection.min_rnr_timer;
        self.reports_overflow = connection.reports_overflow;
        self.ahead = connection.selective_recovery.then(|| Box::new(ReceivedAhead::new()));
    }

    /// Queues a receive. A message that has arrived in part keeps its receive.
    pub(super) fn post(&mut self, request: &RecvRequest<'_>) {
        self.queue.push(request);
        if matches!(self.incoming, IncomingMessage::Send { .. }) {
            self.queue.swap_last();
        }
    }

    /// Handles a request packet. An error moves the queue pair to ERROR; the NAK is pending.
    pub(super) fn handle(
        &mut self,
        packet: &Packet<'_>,
        with: &mut RequestContext<'_, impl Memory>,
    ) -> Result<(), FatalError> {
        let psn = packet.bth.psn;
        if deliberate_bugs::has(Bug::IgnorePsnGap) && self.expected.is_before(psn) {
            self.expected = psn;
        }
        if psn != self.expected {
            if psn.is_before(self.expected) {
                with.counters.packets_dropped += 1;
                self.repeat(packet, with);
                return Ok(());
            }
            self.handle_ahead(packet, with);
            return Ok(());
        }
        match self.execute(packet, with) {
            Ok(packets) => {
                self.expected = self.expected.plus(packets);
                note_received(packet, with.counters);
                self.pass_placed(psn)?;
                self.note_progress(packet);
                Ok(())
            }
            Err(RequestError::NotReady) => {
                self.note_not_ready(with.counters);
                Ok(())
            }
            Err(RequestError::Refused(refusal)) => Err(self.refuse(refusal)),
        }
    }

    /// Refuses the expected packet with a NAK.
    fn refuse(&mut self, refusal: FatalError) -> FatalError {
        let answer = PacketAnswer::Nak(self.expected, Syndrome::Nak(refusal.code));
        (self.answer, self.refusal) = (Some(answer), Some(answer));
        refusal
    }

    /// Handles a packet that arrives while an earlier one is missing. Only a single-packet RDMA
    /// WRITE is executed: no other effect of it depends on the order. One without access is refused
    /// in its turn.
    fn handle_ahead(&mut self, packet: &Packet<'_>, with: &mut RequestContext<'_, impl Memory>) {
        let psn = packet.bth.psn;
        let reached = ReceivedAhead::reaches(self.expected, psn);
        let placed = self.ahead.as_ref().is_some_and(|ahead| reached && !ahead.has(psn))
            && self.place_ahead(packet, with);
        if placed {
            note_received(packet, with.counters);
        } else {
            with.counters.packets_dropped += 1;
        }
        let Some(ahead) = &mut self.ahead else { return self.note_gap() };
        if !reached {
            return;
        }
        if placed {
            ahead.placed(psn);
        }
        // A packet that was not placed must be retransmitted, so the gap is reported soon.
        if ahead.came(psn, packet.bth.ack_request || !placed) && self.answer.is_none() {
            self.answer = Some(PacketAnswer::Ack);
        }
    }

    /// Places a single-packet RDMA WRITE ahead of its turn; returns whether it was valid.
    fn place_ahead(&self, packet: &Packet<'_>, with: &mut RequestContext<'_, impl Memory>) -> bool {
        let Message::WriteOnly(reth, None) = packet.message else { return false };
        if self.check_length(packet).is_err()
            || check_reth(with.qpn, &reth, RemoteAccess::Write, &*with.memory).is_err()
        {
            return false;
        }
        let key = MemoryKey::Remote { qpn: with.qpn, rkey: reth.rkey };
        packet.payload.is_empty() || with.memory.place(key, reth.addr, packet.payload).is_ok()
    }

    /// Advances past the packets that were placed ahead of their turn, once those from `first` on
    /// were executed. Within a message of several packets these are invalid.
    fn pass_placed(&mut self, first: Psn) -> Result<(), FatalError> {
        let Some(ahead) = &mut self.ahead else { return Ok(()) };
        if ahead.has(self.expected) && !matches!(self.incoming, IncomingMessage::None) {
            return Err(self.refuse(FatalError { code: NakCode::INVALID_REQUEST, receive: None }));
        }
        while ahead.has(self.expected) {
            self.expected = self.expected.next();
            self.msn = next_msn(self.msn);
        }
        ahead.pass(first, self.expected);
        Ok(())
    }

    /// Repeats the NAK if the peer, which did not receive it, retransmits the request. Nothing is
    /// executed.
    pub(super) fn handle_after_refusal(&mut self, psn: Psn) {
        if let Some(PacketAnswer::Nak(refused, _)) = self.refusal
            && refused == psn
        {
            self.answer = self.refusal;
        }
    }

    /// Discards unsent acknowledgements and responses.
    pub(super) fn silence(&mut self) {
        self.replies.clear();
        (self.answer, self.refusal) = (None, None);
    }

    /// Whether there are READ responses to send.
    pub(super) fn has_replies(&self) -> bool {
        !self.replies.is_empty()
    }

    /// Whether there is anything to send.
    pub(super) fn wants(&self) -> bool {
        !self.replies.is_empty() || self.answer.is_some()
    }

    /// Writes the next READ response packet, or the pending acknowledgement after the last one,
    /// with BECN if our receive buffer `overflowed`. Fails if memory became inaccessible since the
    /// READ request.
    pub(super) fn poll(
        &mut self,
        qpn: Qpn,
        memory: &impl Memory,
        overflowed: bool,
        counters: &mut QueuePairCounters,
        out: &mut Transmit,
    ) -> Result<bool, FatalError> {
        while let Some(reply) = self.replies.front_mut() {
            let aeth = Aeth { syndrome: Syndrome::ACK, msn: reply.msn };
            let psn = reply.next;
            if reply.emit(qpn, self.peer, self.mtu, aeth, memory, out).is_err() {
                // The peer has got the response before, so the memory may have been invalidated
                // since.
                if reply.repeated {
                    self.replies.pop();
                    continue;
                }
                self.replies.clear();
                let code = NakCode::REMOTE_ACCESS;
                let answer = PacketAnswer::Nak(psn, Syndrome::Nak(code));
                (self.answer, self.refusal) = (Some(answer), Some(answer));
                return Err(FatalError { code, receive: None });
            }
            if reply.next == reply.end {
                self.replies.pop();
            }
            return Ok(true);
        }
        let Some(answer) = self.answer.take() else { return Ok(false) };
        let becn = overflowed && self.reports_overflow;
        let (psn, syndrome) = match answer {
            PacketAnswer::Ack if self.emit_selective(becn, counters, out) => return Ok(true),
            PacketAnswer::Ack => (self.expected.minus(1), Syndrome::ACK),
            PacketAnswer::Nak(psn, syndrome) => (psn, syndrome),
        };
        match syndrome {
            Syndrome::RnrNak(_) => counters.rnr_naks_sent += 1,
            Syndrome::Nak(NakCode::PSN_SEQUENCE) => counters.sequence_naks_sent += 1,
            _ => {}
        }
        let aeth = Aeth { syndrome, msn: self.msn };
        let bth = Bth { becn, ..Bth::new(self.peer, psn) };
        out.start(bth, &Message::Acknowledge(aeth), 0);
        Ok(true)
    }

    /// Writes a selective acknowledgement if a packet is missing; returns whether there is one.
    fn emit_selective(
        &self,
        becn: bool,
        counters: &mut QueuePairCounters,
        out: &mut Transmit,
    ) -> bool {
        let ahead = self.ahead.as_deref();
        let Some((ahead, latest)) = ahead.and_then(|ahead| Some((ahead, ahead.latest()?))) else {
            return false;
        };
        counters.sequence_naks_sent += 1;
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        let bth = Bth { becn, ..Bth::new(self.peer, self.expected.minus(1)) };
        let bits = ahead.bits(self.expected);
        let length = bits.as_slice().len() as u32;
        out.start(bth, &Message::SelectiveAcknowledge(aeth, latest), length);
        out.push_inline(bits.as_slice());
        true
    }

    /// Reports a gap by a NAK, once until the missing packet arrives.
    fn note_gap(&mut self) {
        if !self.gap {
            self.gap = true;
            self.answer =
                Some(PacketAnswer::Nak(self.expected, Syndrome::Nak(NakCode::PSN_SEQUENCE)));
        }
    }

    /// Sends an RNR NAK: the packet will be retransmitted, and those after it are not reported as a
    /// gap.
    fn note_not_ready(&mut self, counters: &mut QueuePairCounters) {
        counters.packets_dropped += 1;
        self.gap = true;
        self.answer = Some(PacketAnswer::Nak(self.expected, Syndrome::RnrNak(self.rnr_timer)));
    }

    /// Updates the pending acknowledgement after the expected packet was executed. An unsent NAK is
    /// obsolete, but an acknowledgement is still needed. A READ response acknowledges everything
    /// before the READ, but nothing after it.
    fn note_progress(&mut self, packet: &Packet<'_>) {
        self.gap = false;
        if self.ahead.as_ref().is_some_and(|ahead| ahead.latest().is_some()) {
            self.answer = Some(PacketAnswer::Ack);
        } else if matches!(packet.message, Message::ReadRequest(_)) {
            self.answer = None;
        } else if packet.bth.ack_request || self.answer.is_some() {
            self.answer = Some(PacketAnswer::Ack);
        }
    }

    /// Handles a duplicate packet: a READ is answered again, anything else is acknowledged again.
    fn repeat(&mut self, packet: &Packet<'_>, with: &RequestContext<'_, impl Memory>) {
        if let Message::ReadRequest(reth) = packet.message {
            let msn = self.latest_reads.msn_of(packet.bth.psn).unwrap_or(self.msn);
            let reply =
                ReadReply { repeated: true, ..ReadReply::new(packet.bth.psn, reth, self.mtu, msn) };
            let open = self.may_read(&reth)
                && !self.expected.is_before(reply.end)
                && check_reth(with.qpn, &reth, RemoteAccess::Read, &*with.memory).is_ok();
            if open {
                self.replies.repeat(reply, self.resources);
            }
        } else if self.answer.is_none() {
            self.answer = Some(PacketAnswer::Ack);
        }
    }

    /// Checks and executes the expected packet; returns the number of PSNs that it takes.
    fn execute(
        &mut self,
        packet: &Packet<'_>,
        with: &mut RequestContext<'_, impl Memory>,
    ) -> Result<u32, RequestError> {
        self.check_sequence(&packet.message)?;
        self.check_length(packet)?;
        match packet.message {
            Message::SendFirst | Message::SendMiddle => self.take_send(packet.payload, with)?,
            Message::SendLast(tail) | Message::SendOnly(tail) => {
                self.take_send(packet.payload, with)?;
                self.finish_send(tail, with)?;
            }
            Message::WriteFirst(reth) => {
                self.begin_write(&reth, with)?;
                self.take_write(packet.payload, with)?;
            }
            Message::WriteMiddle => self.take_write(packet.payload, with)?,
            Message::WriteLast(immediate) => {
                self.check_receive_for(immediate)?;
                self.take_write(packet.payload, with)?;
                self.finish_write(immediate, with);
            }
            Message::WriteOnly(reth, immediate) => {
                self.check_receive_for(immediate)?;
                self.begin_write(&reth, with)?;
                self.take_write(packet.payload, with)?;
                self.finish_write(immediate, with);
            }
            Message::ReadRequest(reth) => return self.begin_read(packet.bth.psn, reth, with),
            _ => return Err(FatalError::INVALID),
        }
        Ok(1)
    }

    /// Checks that First and Only begin a message, and that Middle and Last continue one of their
    /// kind.
    fn check_sequence(&self, message: &Message) -> Result<(), RequestError> {
        let fits = match message {
            Message::SendMiddle | Message::SendLast(_) => {
                matches!(self.incoming, IncomingMessage::Send { .. })
            }
            Message::WriteMiddle | Message::WriteLast(_) => {
                matches!(self.incoming, IncomingMessage::Write { .. })
            }
            _ => matches!(self.incoming, IncomingMessage::None),
        };
        if fits { Ok(()) } else { Err(FatalError::INVALID) }
    }

    /// Checks the payload length: full for First and Middle, not empty for the Last of a SEND, at
    /// most the path MTU, and as announced for an RDMA WRITE.
    fn check_length(&self, packet: &Packet<'_>) -> Result<(), RequestError> {
        let length = u32::try_from(packet.payload.len()).unwrap_or(u32::MAX);
        let fits = match packet.message {
            Message::SendFirst | Message::SendMiddle => length == self.mtu,
            Message::SendLast(_) => (1..=self.mtu).contains(&length),
            Message::SendOnly(_) => length <= self.mtu,
            Message::WriteFirst(reth) => {
                length == self.mtu && (self.mtu + 1..=DMA_MAX_BYTES).contains(&reth.length)
            }
            Message::WriteMiddle => length == self.mtu && length < self.write_remaining(),
            Message::WriteLast(_) => length <= self.mtu && length == self.write_remaining(),
            Message::WriteOnly(reth, _) => length <= self.mtu && length == reth.length,
            Message::ReadRequest(reth) => length == 0 && self.may_read(&reth),
            _ => true,
        };
        if fits { Ok(()) } else { Err(FatalError::INVALID) }
    }

    const fn may_read(&self, reth: &Reth) -> bool {
        reth.length <= DMA_MAX_BYTES && reth.length.div_ceil(self.mtu) <= READ_PACKETS_MAX
    }

    const fn write_remaining(&self) -> u32 {
        match self.incoming {
            IncomingMessage::Write { remaining, .. } => remaining,
            _ => 0,
        }
    }

    /// Checks for a receive if the message has immediate data, which consumes one.
    const fn check_receive_for(&self, immediate: Option<u32>) -> Result<(), RequestError> {
        if immediate.is_some() && self.queue.is_empty() {
            Err(RequestError::NotReady)
        } else {
            Ok(())
        }
    }

    /// Places the payload of a SEND packet in its receive.
    fn take_send(
        &mut self,
        payload: &[u8],
        with: &mut RequestContext<'_, impl Memory>,
    ) -> Result<(), RequestError> {
        let received = match self.incoming {
            IncomingMessage::Send { received } => received,
            _ => 0,
        };
        let (entry, sges) = self.queue.last().ok_or(RequestError::NotReady)?;
        let total = received.saturating_add(payload.len() as u32);
        if total > entry.length {
            return Err(FatalError::with_receive(
                NakCode::INVALID_REQUEST,
                WorkStatus::LocalLength,
            ));
        }
        sge::scatter(with.memory, sges, received, payload).map_err(|_| {
            FatalError::with_receive(NakCode::REMOTE_OPERATIONAL, WorkStatus::LocalProtection)
        })?;
        self.incoming = IncomingMessage::Send { received: total };
        Ok(())
    }

    /// Completes the receive of a SEND.
    fn finish_send(
        &mut self,
        tail: Tail,
        with: &mut RequestContext<'_, impl Memory>,
    ) -> Result<(), RequestError> {
        let IncomingMessage::Send { received: byte_length } = self.incoming else {
            return Err(FatalError::INVALID);
        };
        let received = match tail {
            Tail::Plain => ReceivedInfo::Plain,
            Tail::Immediate(immediate) => ReceivedInfo::Immediate(immediate),
            Tail::Invalidate(rkey) => {
                with.memory.invalidate(with.qpn, rkey).map_err(|_| {
                    FatalError::with_receive(NakCode::REMOTE_ACCESS, WorkStatus::LocalAccess)
                })?;
                ReceivedInfo::Invalidated(rkey)
            }
        };
        self.complete(CompletedWork::Receive, byte_length, received, with.completions);
        self.finish_message();
        Ok(())
    }

    /// Starts an RDMA WRITE after checking access to its whole range.
    fn begin_write(
        &mut self,
        reth: &Reth,
        with: &RequestContext<'_, impl Memory>,
    ) -> Result<(), RequestError> {
        check_reth(with.qpn, reth, RemoteAccess::Write, &*with.memory)?;
        let Reth { addr, rkey, length } = *reth;
        self.incoming = IncomingMessage::Write { addr, rkey, length, remaining: length };
        Ok(())
    }

    /// Places the payload of an RDMA WRITE packet. The region may have been deregistered since the
    /// first packet was checked.
    fn take_write(
        &mut self,
        payload: &[u8],
        with: &mut RequestContext<'_, impl Memory>,
    ) -> Result<(), RequestError> {
        let IncomingMessage::Write { addr, rkey, length, remaining } = self.incoming else {
            return Err(FatalError::INVALID);
        };
        if !payload.is_empty() {
            let key = MemoryKey::Remote { qpn: with.qpn, rkey };
            with.memory.place(key, addr, payload).map_err(|_| FatalError::ACCESS)?;
        }
        let addr = addr.wrapping_add(payload.len() as u64);
        let remaining = remaining - payload.len() as u32;
        self.incoming = IncomingMessage::Write { addr, rkey, length, remaining };
        Ok(())
    }

    fn finish_write(&mut self, immediate: Option<u32>, with: &mut RequestContext<'_, impl Memory>) {
        if let (Some(immediate), IncomingMessage::Write { length, .. }) = (immediate, self.incoming)
        {
            let received = ReceivedInfo::Immediate(immediate);
            self.complete(CompletedWork::ReceiveWriteImmediate, length, received, with.completions);
        }
        self.finish_message();
    }

    fn begin_read(
        &mut self,
        psn: Psn,
        reth: Reth,
        with: &RequestContext<'_, impl Memory>,
    ) -> Result<u32, RequestError> {
        check_reth(with.qpn, &reth, RemoteAccess::Read, &*with.memory)?;
        let reply = ReadReply::new(psn, reth, self.mtu, next_msn(self.msn));
        if !self.replies.push(reply, self.resources) {
            return Err(FatalError::INVALID);
        }
        self.latest_reads.add(&reply);
        self.finish_message();
        Ok(reply.end.since(reply.first))
    }

    fn finish_message(&mut self) {
        self.incoming = IncomingMessage::None;
        self.msn = next_msn(self.msn);
    }

    /// Completes a receive. Earlier checks ensure that one is posted.
    fn complete(
        &mut self,
        work: CompletedWork,
        byte_length: u32,
        received: ReceivedInfo,
        completions: &mut Completions,
    ) {
        if let Some(entry) = self.queue.pop() {
            let (wr_id, status) = (entry.wr_id, WorkStatus::Success);
            completions.push(WorkCompletion { wr_id, status, work, byte_length, received });
        }
    }
}

impl ReadReply {
    fn new(psn: Psn, reth: Reth, mtu: u32, msn: u32) -> Self {
        let packets = reth.length.div_ceil(mtu).max(1);
        Self { first: psn, next: psn, end: psn.plus(packets), reth, msn, repeated: false }
    }

    /// Writes the next packet of the response to `out`.
    fn emit(
        &mut self,
        qpn: Qpn,
        peer: Qpn,
        mtu: u32,
        aeth: Aeth,
        memory: &impl Memory,
        out: &mut Transmit,
    ) -> Result<(), RequestError> {
        let index = self.next.since(self.first);
        let offset = index * mtu;
        let rkey = self.reth.rkey;
        let reth = Reth {
            addr: self.reth.addr.wrapping_add(u64::from(offset)),
            rkey,
            length: mtu.min(self.reth.length - offset),
        };
        check_reth(qpn, &reth, RemoteAccess::Read, memory)?;
        let message = match (index == 0, self.next.next() == self.end) {
            (true, true) => Message::ReadResponseOnly(aeth),
            (true, false) => Message::ReadResponseFirst(aeth),
            (false, false) => Message::ReadResponseMiddle,
            (false, true) => Message::ReadResponseLast(aeth),
        };
        out.start(Bth::new(peer, self.next), &message, reth.length);
        if reth.length > 0 {
            let key = MemoryKey::Remote { qpn, rkey };
            out.push_piece(PayloadPiece { key, addr: reth.addr, length: reth.length });
        }
        if self.repeated {
            out.mark_retransmission();
        }
        self.next = self.next.next();
        Ok(())
    }
}

fn note_received(packet: &Packet<'_>, counters: &mut QueuePairCounters) {
    counters.packets_received += 1;
    counters.payload_bytes_received += packet.payload.len() as u64;
}

const fn next_msn(msn: u32) -> u32 {
    (msn + 1) & 0x00FF_FFFF
}

/// Checks access to the memory of `reth`. For zero bytes the key is not checked (IBTA volume 1,
/// 9.4.3).
fn check_reth(
    qpn: Qpn,
    reth: &Reth,
    access: RemoteAccess,
    memory: &impl Memory,
) -> Result<(), RequestError> {
    if reth.length == 0 {
        return Ok(());
    }
    memory
        .check_remote(qpn, reth.rkey, reth.addr, reth.length, access)
        .map_err(|_| FatalError::ACCESS)
}

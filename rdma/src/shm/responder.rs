//! The responder: checks and carries out the requests of an untrusted peer.
#![expect(unsafe_code, reason = "rings are reached by address")]

use std::collections::VecDeque;

use super::agreement::LinkAgreement;
use super::copies;
use super::link::ShmLink;
use super::mapping::RingUse;
use super::receive_queue::ReceiveQueue;
use super::record::{AnswerRecord, MessagePart, Refusal, RequestRecord};
use super::ring::{MAX_PAYLOAD, RingReader, RingRecord, RingWriter};
use super::turn::{QpFailure, QpTurn};
use super::work_limits::WorkLimits;
use crate::software::regions::Denied;
use crate::{Access, PushError, RecvWr, Sge, Wc, WcOpcode, WcStatus};

/// The receive queue, the peer's requests and our answers.
pub(super) struct RingResponder {
    receives: ReceiveQueue,
    /// The SEND message that has not arrived completely.
    arriving: Option<ArrivingMessage>,
    /// Scatter-gather elements of its receive.
    arriving_sges: Box<[Sge]>,
    requests: RingReader,
    answers: RingWriter,
    reads: VecDeque<ServedRead>,
    /// Refusal of the peer's oldest request, sent after the data of the RDMA READs before it.
    refusal: Option<Refusal>,
    /// Ring position of a message that waits for a receive.
    starved_at: Option<u64>,
    /// Whether the peer must still be notified of that.
    tell_starved: bool,
    /// Whether the answer ring has no room for the next record.
    blocked: bool,
}

/// A SEND message that has arrived in part.
struct ArrivingMessage {
    wr_id: u64,
    elements: usize,
    total: u32,
    received: u32,
}

/// An RDMA READ of the peer that is being answered.
struct ServedRead {
    addr: u64,
    rkey: u32,
    length: u32,
    sent: u32,
}

/// Result of a request that was not refused.
enum Executed {
    Done,
    /// The request waits, since no receive is posted.
    Starved,
}

impl RingResponder {
    pub(super) fn new(limits: WorkLimits) -> Self {
        Self {
            receives: ReceiveQueue::new(limits),
            arriving: None,
            arriving_sges: vec![Sge::default(); limits.recv_sge].into_boxed_slice(),
            requests: RingReader::default(),
            answers: RingWriter::default(),
            reads: VecDeque::with_capacity(usize::from(super::agreement::MAX_DEPTH)),
            refusal: None,
            starved_at: None,
            tell_starved: false,
            blocked: false,
        }
    }

    pub(super) fn push(&mut self, wr: &RecvWr<'_>) -> Result<(), PushError> {
        self.receives.push(wr, usize::from(self.arriving.is_some()))
    }

    /// Whether a message waits for a receive.
    pub(super) fn is_starved(&self) -> bool {
        self.starved_at.is_some()
    }

    /// Whether it waits for the peer to free ring space.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Carries out the peer's requests; returns whether there were any.
    pub(super) fn take_requests(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
        agreement: &LinkAgreement,
    ) -> Result<bool, QpFailure> {
        if self.refusal.is_some() {
            return Ok(false);
        }
        let ring = link.incoming(RingUse::Requests);
        self.requests.refresh(&ring)?;
        let mut busy = false;
        while let Some(record) = self.requests.next(&ring)? {
            let executed = match RequestRecord::parse(record.words) {
                Some(request) => self.execute(turn, agreement, &record, request),
                None => Err(Refusal::InvalidRequest),
            };
            match executed {
                Ok(Executed::Done) => self.starved_at = None,
                Ok(Executed::Starved) => {
                    self.starve(turn);
                    break;
                }
                Err(refusal) => {
                    self.refusal = Some(refusal);
                    busy = true;
                    break;
                }
            }
            busy = true;
            turn.stats.packets_received += 1;
            turn.stats.payload_bytes_received += u64::from(record.length());
            self.requests.finish(&record);
            if self.requests.unpublished() >= u64::from(MAX_PAYLOAD) {
                turn.news.read |= self.requests.publish(&ring);
            }
        }
        turn.news.read |= self.requests.publish(&ring);
        Ok(busy)
    }

    /// Records that the next message has no receive.
    fn starve(&mut self, turn: &mut QpTurn<'_>) {
        let position = Some(self.requests.position());
        if self.starved_at != position {
            self.starved_at = position;
            self.tell_starved = true;
            turn.stats.rnr_naks_sent += 1;
        }
    }

    fn execute(
        &mut self,
        turn: &mut QpTurn<'_>,
        agreement: &LinkAgreement,
        record: &RingRecord,
        request: RequestRecord,
    ) -> Result<Executed, Refusal> {
        match request {
            RequestRecord::Send { part, invalidate } => {
                if part.first && self.arriving.is_none() && self.receives.is_empty() {
                    return Ok(Executed::Starved);
                }
                self.receive(turn, record, part, invalidate)?;
            }
            _ if self.arriving.is_some() => return Err(Refusal::InvalidRequest),
            RequestRecord::Write { part, addr, rkey } => {
                write(turn, record, part, addr, rkey).map_err(|Denied| Refusal::Access)?;
            }
            RequestRecord::Read { addr, rkey, length } => {
                if self.reads.len() >= usize::from(agreement.responder_resources) {
                    return Err(Refusal::InvalidRequest);
                }
                check(turn, addr, rkey, length, Access::REMOTE_READ)
                    .map_err(|Denied| Refusal::Access)?;
                self.reads.push_back(ServedRead { addr, rkey, length, sent: 0 });
            }
        }
        Ok(Executed::Done)
    }

    /// Places part of a SEND message, and completes its receive after the last part.
    fn receive(
        &mut self,
        turn: &mut QpTurn<'_>,
        record: &RingRecord,
        part: MessagePart,
        invalidate: Option<u32>,
    ) -> Result<(), Refusal> {
        if part.first {
            self.begin(turn, part.total)?;
        }
        let Some(message) = &mut self.arriving else { return Err(Refusal::InvalidRequest) };
        let received = message.received.checked_add(record.length());
        let received = received.filter(|&received| received <= message.total);
        let received = received.ok_or(Refusal::InvalidRequest)?;
        if message.total != part.total || part.last != (received == message.total) {
            return Err(Refusal::InvalidRequest);
        }
        let sges = &self.arriving_sges[..message.elements];
        if copies::scatter(turn.memory, sges, message.received, record) == Err(Denied) {
            self.complete(turn, WcStatus::LOCAL_PROTECTION_ERROR, None);
            return Err(Refusal::Operation);
        }
        message.received = received;
        if part.last {
            if let Some(rkey) = invalidate {
                turn.memory.invalidate(turn.qpn, rkey).map_err(|Denied| Refusal::Access)?;
            }
            self.complete(turn, WcStatus::SUCCESS, invalidate);
        }
        Ok(())
    }

    /// Takes a receive for a new message.
    fn begin(&mut self, turn: &mut QpTurn<'_>, total: u32) -> Result<(), Refusal> {
        if self.arriving.is_some() {
            return Err(Refusal::InvalidRequest);
        }
        let (wr_id, sges) = self.receives.pop().ok_or(Refusal::InvalidRequest)?;
        self.arriving_sges[..sges.len()].copy_from_slice(sges);
        let room: u64 = sges.iter().map(|sge| u64::from(sge.length)).sum();
        let elements = sges.len();
        self.arriving = Some(ArrivingMessage { wr_id, elements, total, received: 0 });
        if u64::from(total) > room {
            self.complete(turn, WcStatus::LOCAL_LENGTH_ERROR, None);
            return Err(Refusal::InvalidRequest);
        }
        Ok(())
    }

    /// Completes the receive of the arriving message, if there is one.
    fn complete(&mut self, turn: &mut QpTurn<'_>, status: WcStatus, invalidated: Option<u32>) {
        let Some(message) = self.arriving.take() else { return };
        let wc = Wc::new(message.wr_id, turn.qpn, status, WcOpcode::RECV, message.received);
        turn.completions.push_back(match invalidated {
            Some(rkey) => wc.with_invalidated(rkey),
            None => wc,
        });
    }

    /// Writes answers as far as there is room; returns whether any was written.
    ///
    /// # Errors
    /// A request was refused, and the refusal is written: the queue pair goes to ERROR.
    pub(super) fn give_answers(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
    ) -> Result<bool, QpFailure> {
        let ring = link.outgoing(RingUse::Answers);
        self.answers.refresh(&ring)?;
        let before = self.answers.written();
        let all = self.answer_all(turn, link);
        self.blocked = !all;
        turn.news.records |= self.answers.publish(&ring);
        if all && self.refusal.is_some() {
            return Err(QpFailure(WcStatus::FLUSHED));
        }
        Ok(before != self.answers.written())
    }

    /// Writes all pending answers; returns false if there was no room for all.
    fn answer_all(&mut self, turn: &mut QpTurn<'_>, link: &ShmLink) -> bool {
        let ring = link.outgoing(RingUse::Answers);
        while let Some(read) = self.reads.front_mut() {
            let length = (read.length - read.sent).min(MAX_PAYLOAD);
            let Some(space) = self.answers.space(&ring, length) else { return false };
            let addr = read.addr.wrapping_add(read.sent.into());
            let key = (read.rkey, turn.qpn);
            let copied = if length == 0 {
                Ok(())
            } else {
                // SAFETY: the space has room for as much.
                unsafe { turn.memory.copy_from_remote(key, addr, space.payload(), length) }
            };
            if copied == Err(Denied) {
                // The region was deregistered after the request had been checked.
                self.refusal = Some(Refusal::Access);
                self.reads.clear();
                break;
            }
            read.sent += length;
            let last = read.sent == read.length;
            self.answers.commit(&ring, &space, AnswerRecord::ReadData { last }.encode(length));
            turn.stats.packets_sent += 1;
            turn.stats.payload_bytes_sent += u64::from(length);
            if last {
                self.reads.pop_front();
            } else {
                // Published so that the peer can start on this part.
                turn.news.records |= self.answers.publish(&ring);
            }
        }
        if self.tell_starved
            && let Some(position) = self.starved_at
        {
            let Some(space) = self.answers.space(&ring, 0) else { return false };
            self.answers.commit(&ring, &space, AnswerRecord::NotReady { position }.encode(0));
        }
        self.tell_starved = false;
        if let Some(refusal) = self.refusal {
            let Some(space) = self.answers.space(&ring, 0) else { return false };
            self.answers.commit(&ring, &space, AnswerRecord::Refused(refusal).encode(0));
        }
        true
    }

    /// Completes all receives with [`WcStatus::FLUSHED`].
    pub(super) fn flush(&mut self, turn: &mut QpTurn<'_>) {
        self.complete(turn, WcStatus::FLUSHED, None);
        while let Some((wr_id, _)) = self.receives.pop() {
            let (status, opcode) = (WcStatus::FLUSHED, WcOpcode::RECV);
            turn.completions.push_back(Wc::new(wr_id, turn.qpn, status, opcode, 0));
        }
        self.reads.clear();
        (self.refusal, self.starved_at, self.blocked) = (None, None, false);
    }

    /// Whether the peer has written requests or read answers that were not processed yet.
    pub(super) fn has_news(&self, link: &ShmLink) -> bool {
        self.requests.has_news(&link.incoming(RingUse::Requests))
            || self.answers.has_news(&link.outgoing(RingUse::Answers))
    }
}

/// Places part of an RDMA WRITE. The whole range is checked before its first part is placed.
fn write(
    turn: &QpTurn<'_>,
    record: &RingRecord,
    part: MessagePart,
    addr: u64,
    rkey: u32,
) -> Result<(), Denied> {
    if part.first {
        check(turn, addr, rkey, part.total, Access::REMOTE_WRITE)?;
    }
    if record.length() == 0 {
        return Ok(());
    }
    // SAFETY: the payload was found to lie in the ring, which belongs to no region.
    unsafe { turn.memory.copy_to_remote((rkey, turn.qpn), addr, record.payload, record.length()) }
}

/// Checks that the peer may access memory. Zero bytes need no key.
fn check(
    turn: &QpTurn<'_>,
    addr: u64,
    rkey: u32,
    length: u32,
    access: Access,
) -> Result<(), Denied> {
    if length == 0 {
        return Ok(());
    }
    turn.memory.check_remote(rkey, addr, length.into(), access, turn.qpn)
}

//! The requester: carries out the send requests of a queue pair.

use core::ptr::NonNull;
use core::time::Duration;

use super::agreement::LinkAgreement;
use super::copies;
use super::link::ShmLink;
use super::mapping::RingUse;
use super::record::{AnswerRecord, MessagePart, RequestRecord};
use super::ring::{MAX_PAYLOAD, RecordSpace, RingReader, RingRecord, RingWriter};
use super::send_queue::{QueuedSend, RingSendQueue, SendSource, SendState};
use super::turn::{QpFailure, QpTurn};
use super::work_limits::WorkLimits;
use crate::software::regions::Denied;
use crate::{Access, Bind, Op, PushError, SendFlags, SendWr, Time, Wc, WcStatus, WriteRoom};

/// Duration that one RNR retry stands for: the RNR timer that `soft` announces.
const NOT_READY_RETRY: Duration = Duration::from_micros(640);
/// The RNR retry count that means no limit.
const RETRY_FOR_EVER: u8 = 7;

/// The send queue, its request ring and the peer's answers.
pub(super) struct RingRequester {
    queue: RingSendQueue,
    /// Index of the oldest request that is not completely written to the ring.
    next: usize,
    /// Number of bytes of that request that are written.
    sent: u32,
    reads_in_flight: u8,
    requests: RingWriter,
    answers: RingReader,
    /// Whether the ring has no room for the next record.
    blocked: bool,
    /// Time of the peer's last progress, while it has incomplete requests.
    silent_since: Option<Time>,
    not_ready: NotReady,
    /// Whether the peer was seen to have read records since the last call of `retire`.
    peer_has_read: bool,
}

/// Whether the oldest request waits for a receive of the peer, and until when.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NotReady {
    No,
    Until(Time),
    ForEver,
}

impl RingRequester {
    pub(super) fn new(limits: WorkLimits) -> Self {
        Self {
            queue: RingSendQueue::new(limits),
            next: 0,
            sent: 0,
            reads_in_flight: 0,
            requests: RingWriter::default(),
            answers: RingReader::default(),
            blocked: false,
            silent_since: None,
            not_ready: NotReady::No,
            peer_has_read: false,
        }
    }

    pub(super) fn push<'a>(
        &mut self,
        wr: &SendWr<'_>,
        captured: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), PushError> {
        self.queue.push(wr, captured)
    }

    /// Whether the peer has incomplete requests, or parts of one.
    pub(super) fn has_outstanding(&self) -> bool {
        self.next > 0 || self.sent > 0
    }

    /// Whether it waits for the peer to free ring space.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Writes requests to the ring as far as there is room; returns whether any was written.
    pub(super) fn transmit(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
        agreement: &LinkAgreement,
    ) -> Result<bool, QpFailure> {
        let before = (self.next, self.sent);
        self.blocked = false;
        while let Some(&entry) = self.queue.get(self.next)
            && entry.state == SendState::Queued
        {
            let waits = entry.flags.contains(SendFlags::FENCE) && self.reads_in_flight > 0;
            if waits || !self.hand_over(turn, link, agreement, &entry)? {
                break;
            }
            (self.next, self.sent) = (self.next + 1, 0);
        }
        turn.news.records |= self.requests.publish(&link.outgoing(RingUse::Requests));
        if self.has_outstanding() {
            self.silent_since.get_or_insert(turn.now);
        }
        Ok(before != (self.next, self.sent))
    }

    /// Carries out or writes the next request; returns false if it failed or is not written
    /// completely.
    fn hand_over(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
        agreement: &LinkAgreement,
        entry: &QueuedSend,
    ) -> Result<bool, QpFailure> {
        match entry.op {
            Op::Bind(bind) => Ok(self.bind(turn, &bind)),
            Op::LocalInvalidate { rkey } => {
                let invalidated = turn.memory.invalidate(turn.qpn, rkey);
                Ok(self.done_here(invalidated))
            }
            Op::RdmaRead { remote_addr, rkey } => {
                let request = RequestRecord::Read { addr: remote_addr, rkey, length: entry.length };
                self.ask(turn, link, agreement, request)
            }
            Op::Send => self
                .send(turn, link, entry, |part, _| RequestRecord::Send { part, invalidate: None }),
            Op::SendWithInvalidate { rkey } => self.send(turn, link, entry, |part, _| {
                RequestRecord::Send { part, invalidate: Some(rkey) }
            }),
            Op::RdmaWrite { remote_addr, rkey } => self.send(turn, link, entry, |part, offset| {
                let addr = remote_addr.wrapping_add(offset.into());
                RequestRecord::Write { part, addr, rkey }
            }),
        }
    }

    fn bind(&mut self, turn: &QpTurn<'_>, bind: &Bind) -> bool {
        let bound = turn.memory.bind(turn.qpn, bind);
        self.done_here(bound)
    }

    /// Sets the state of the next request after a local operation on a window; returns whether it
    /// succeeded.
    fn done_here(&mut self, result: Result<(), Denied>) -> bool {
        let done = result.is_ok();
        let failed = SendState::Failed(WcStatus::WINDOW_BIND_ERROR);
        self.queue.set_state(self.next, if done { SendState::Done } else { failed });
        done
    }

    /// Writes an RDMA READ request.
    fn ask(
        &mut self,
        turn: &QpTurn<'_>,
        link: &ShmLink,
        agreement: &LinkAgreement,
        request: RequestRecord,
    ) -> Result<bool, QpFailure> {
        if agreement.initiator_depth == 0 {
            let failed = SendState::Failed(WcStatus::LOCAL_QP_OPERATION_ERROR);
            self.queue.set_state(self.next, failed);
            return Ok(false);
        }
        if self.reads_in_flight >= agreement.initiator_depth {
            return Ok(false);
        }
        if !self.may_be_read_into(turn) {
            let failed = SendState::Failed(WcStatus::LOCAL_PROTECTION_ERROR);
            self.queue.set_state(self.next, failed);
            return Ok(false);
        }
        let ring = link.outgoing(RingUse::Requests);
        let Some(space) = self.requests.space(&ring, 0) else {
            self.blocked = true;
            return Ok(false);
        };
        self.requests.commit(&ring, &space, request.encode(0));
        self.reads_in_flight += 1;
        self.queue.set_state(self.next, SendState::Reading { received: 0 });
        Ok(true)
    }

    fn may_be_read_into(&self, turn: &QpTurn<'_>) -> bool {
        let SendSource::Regions(sges) = self.queue.source(self.next) else { return false };
        let writable = Access::LOCAL_WRITE;
        sges.iter().filter(|sge| sge.length > 0).all(|sge| {
            turn.memory.check_local(sge.lkey, sge.addr, sge.length.into(), writable).is_ok()
        })
    }

    /// Writes the rest of the next request to the ring; returns false if not all of it fits.
    fn send(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
        entry: &QueuedSend,
        record: impl Fn(MessagePart, u32) -> RequestRecord,
    ) -> Result<bool, QpFailure> {
        let ring = link.outgoing(RingUse::Requests);
        loop {
            let length = (entry.length - self.sent).min(MAX_PAYLOAD);
            let Some(space) = self.requests.space(&ring, length) else {
                self.blocked = true;
                return Ok(false);
            };
            let filled = match self.queue.source(self.next) {
                SendSource::Inline(bytes) => {
                    copies::fill(&bytes[self.sent as usize..][..length as usize], &space);
                    Ok(())
                }
                SendSource::Regions(sges) => copies::gather(turn.memory, sges, self.sent, &space),
            };
            if filled == Err(Denied) {
                let failed = SendState::Failed(WcStatus::LOCAL_PROTECTION_ERROR);
                self.queue.set_state(self.next, failed);
                return Ok(false);
            }
            let last = self.sent + length == entry.length;
            let part = MessagePart { total: entry.length, first: self.sent == 0, last };
            let words = record(part, self.sent).encode(length);
            self.requests.commit(&ring, &space, words);
            self.sent += length;
            turn.stats.packets_sent += 1;
            turn.stats.payload_bytes_sent += u64::from(length);
            if last {
                let end = self.requests.written();
                self.queue.set_state(self.next, SendState::Sent(end));
                return Ok(true);
            }
            // Published so that the peer can start on this part.
            turn.news.records |= self.requests.publish(&ring);
        }
    }

    /// Whether the ring has room for `total` bytes of payload now. False while a message is written
    /// in part, since its other parts must follow it.
    pub(super) fn has_write_room(&mut self, link: &ShmLink, total: u32) -> bool {
        if self.sent > 0 {
            return false;
        }
        let ring = link.outgoing(RingUse::Requests);
        if self.requests.has_room(&ring, total) {
            return true;
        }
        // A position that is impossible is found again, and reported, by `retire`.
        let read = self.requests.refresh(&ring);
        self.peer_has_read |= read.unwrap_or(false);
        self.requests.has_room(&ring, total)
    }

    /// Reserves a record for the first of `total` bytes that the caller places itself.
    pub(super) fn write_room(&mut self, link: &ShmLink, total: u32) -> Option<WriteRoom> {
        if !self.has_write_room(link, total) {
            return None;
        }
        let ring = link.outgoing(RingUse::Requests);
        let space = self.requests.space(&ring, total.min(MAX_PAYLOAD))?;
        let address = NonNull::new(space.payload())?;
        Some(WriteRoom { address, length: space.length(), position: self.requests.written() })
    }

    /// Writes the header of a room's record, an RDMA WRITE; returns whether the peer may be rung
    /// for it, or `None` if the room is outdated. A few small records are published with the next
    /// request: one publication each would have the peer look for one record at a time.
    pub(super) fn send_room(
        &mut self,
        link: &ShmLink,
        room: &WriteRoom,
        addr: u64,
        rkey: u32,
    ) -> Option<bool> {
        let &WriteRoom { address, length, position } = room;
        let ring = link.outgoing(RingUse::Requests);
        if self.sent > 0 || !self.requests.is_next(&ring, address.as_ptr(), position) {
            return None;
        }
        let space = RecordSpace { payload: address.as_ptr(), length };
        let part = MessagePart { total: length, first: true, last: true };
        let words = RequestRecord::Write { part, addr, rkey }.encode(length);
        self.requests.commit(&ring, &space, words);
        let many = self.requests.unpublished() >= u64::from(MAX_PAYLOAD);
        Some(many && self.requests.publish(&ring))
    }

    /// Processes the peer's answers; returns whether there were any.
    pub(super) fn take_answers(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
        agreement: &LinkAgreement,
    ) -> Result<bool, QpFailure> {
        let ring = link.incoming(RingUse::Answers);
        self.answers.refresh(&ring)?;
        let mut busy = false;
        while let Some(record) = self.answers.next(&ring)? {
            busy = true;
            let bad = QpFailure(WcStatus::BAD_RESPONSE);
            match AnswerRecord::parse(record.words).ok_or(bad)? {
                AnswerRecord::ReadData { last } => self.place(turn, link, &record, last)?,
                AnswerRecord::NotReady { position } => {
                    self.wait_for_receive(turn, link, agreement, position)?;
                }
                AnswerRecord::Refused(refusal) => {
                    // The refusal concerns the oldest incomplete request.
                    self.retire(turn, link)?;
                    return Err(QpFailure(refusal.status()));
                }
            }
            self.answers.finish(&record);
            if self.answers.unpublished() >= u64::from(MAX_PAYLOAD) {
                turn.news.read |= self.answers.publish(&ring);
            }
        }
        turn.news.read |= self.answers.publish(&ring);
        Ok(busy)
    }

    /// Places data of the oldest RDMA READ.
    fn place(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
        record: &RingRecord,
        last: bool,
    ) -> Result<(), QpFailure> {
        let bad = QpFailure(WcStatus::BAD_RESPONSE);
        let (index, received) = self.queue.oldest_read().ok_or(bad)?;
        let total = self.queue.get(index).map_or(0, |entry| entry.length);
        let length = record.length();
        let rest = (total - received).checked_sub(length).ok_or(bad)?;
        let SendSource::Regions(sges) = self.queue.source(index) else { return Err(bad) };
        if last != (rest == 0) {
            return Err(bad);
        }
        if copies::scatter(turn.memory, sges, received, record) == Err(Denied) {
            // Requests before it are done, since the peer answers in order.
            self.retire(turn, link)?;
            return Err(QpFailure(WcStatus::LOCAL_PROTECTION_ERROR));
        }
        turn.stats.packets_received += 1;
        turn.stats.payload_bytes_received += u64::from(length);
        self.silent_since = Some(turn.now);
        let received = received + length;
        self.queue.set_state(index, SendState::Reading { received });
        if last {
            self.queue.set_state(index, SendState::Done);
            self.reads_in_flight -= 1;
        }
        Ok(())
    }

    fn wait_for_receive(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
        agreement: &LinkAgreement,
        position: u64,
    ) -> Result<(), QpFailure> {
        turn.stats.rnr_naks_received += 1;
        self.retire(turn, link)?;
        if self.requests.read() > position {
            // A receive was posted since then.
            return Ok(());
        }
        self.not_ready = match agreement.rnr_retry_count {
            0 => return Err(QpFailure(WcStatus::RNR_RETRY_EXCEEDED)),
            RETRY_FOR_EVER => NotReady::ForEver,
            count => NotReady::Until(turn.now + NOT_READY_RETRY * count.into()),
        };
        Ok(())
    }

    /// Completes the requests that are done; returns whether there were any.
    pub(super) fn retire(
        &mut self,
        turn: &mut QpTurn<'_>,
        link: &ShmLink,
    ) -> Result<bool, QpFailure> {
        let mut busy = self.requests.refresh(&link.outgoing(RingUse::Requests))?;
        busy |= core::mem::take(&mut self.peer_has_read);
        if busy {
            self.not_ready = NotReady::No;
            self.silent_since = Some(turn.now);
        }
        while let Some(oldest) = self.queue.get(0) {
            match oldest.state {
                SendState::Done => {}
                SendState::Sent(end) if end <= self.requests.read() => {}
                SendState::Failed(status) => return Err(QpFailure(status)),
                _ => break,
            }
            let Some(entry) = self.queue.retire() else { break };
            self.next -= 1;
            busy = true;
            if entry.flags.contains(SendFlags::SIGNALED) {
                let (status, opcode) = (WcStatus::SUCCESS, entry.opcode());
                let wc = Wc::new(entry.wr_id, turn.qpn, status, opcode, entry.length);
                turn.completions.push_back(wc);
            }
        }
        if !self.has_outstanding() {
            self.silent_since = None;
        }
        Ok(busy)
    }

    /// Completes all requests: the oldest with `status`, the others with [`WcStatus::FLUSHED`].
    pub(super) fn flush(&mut self, turn: &mut QpTurn<'_>, status: WcStatus) {
        let mut status = status;
        while let Some(entry) = self.queue.retire() {
            turn.completions.push_back(Wc::new(entry.wr_id, turn.qpn, status, entry.opcode(), 0));
            status = WcStatus::FLUSHED;
        }
        (self.next, self.sent, self.silent_since) = (0, 0, None);
        (self.blocked, self.not_ready) = (false, NotReady::No);
    }

    /// Time at which the queue pair fails if the peer makes no progress.
    pub(super) fn deadline(&self, agreement: &LinkAgreement) -> Option<Time> {
        match self.not_ready {
            NotReady::ForEver => None,
            NotReady::Until(time) => Some(time),
            NotReady::No => Some(self.silent_since? + agreement.silence_timeout),
        }
    }

    /// Fails if that time has passed: with RNR_RETRY_EXCEEDED if the peer has no receive, else
    /// RETRY_EXCEEDED.
    pub(super) fn check_time(
        &self,
        turn: &mut QpTurn<'_>,
        agreement: &LinkAgreement,
    ) -> Result<(), QpFailure> {
        if self.deadline(agreement).is_none_or(|deadline| turn.now < deadline) {
            return Ok(());
        }
        if self.not_ready != NotReady::No {
            return Err(QpFailure(WcStatus::RNR_RETRY_EXCEEDED));
        }
        turn.stats.ack_timeouts += 1;
        Err(QpFailure(WcStatus::RETRY_EXCEEDED))
    }

    /// Whether the peer has written answers or read requests that were not processed yet.
    pub(super) fn has_news(&self, link: &ShmLink) -> bool {
        self.peer_has_read
            || self.answers.has_news(&link.incoming(RingUse::Answers))
            || self.requests.has_news(&link.outgoing(RingUse::Requests))
    }
}

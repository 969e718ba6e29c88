//! The requester: turns send requests into packets.
//!
//! All requests together are one stream of sequence numbers, with marks in it. Everything before
//! `unacknowledged` is done; everything before `confirmed` was executed by the peer, though
//! responses to READs may be missing; everything before `next` is on its way; everything before
//! `high` was sent at least once. Going back to send again sets `next` back; nothing else has to be
//! undone. What answers do to the marks is in the completer, `completer.rs`.

use alloc::boxed::Box;
use core::time::Duration;

use crate::rc::completions::Completions;
use crate::rc::congestion::LossCause;
use crate::rc::datagram_cost::HEADERS_BYTES;
use crate::rc::outstanding_reads::{OutstandingRead, OutstandingReads};
use crate::rc::psn_set::PsnSet;
use crate::rc::read_repair::ReadRepair;
use crate::rc::recovery::{Cause, Probe, Recovery};
use crate::rc::request_repair::RequestRepair;
use crate::rc::retransmit_timer::{READ_AGAIN_AFTER, RetransmitTimer};
use crate::rc::send_queue::{PayloadSource, SendEntry, SendQueue};
use crate::rc::window::Wait;
use crate::rc::{
    ConnectionParams, LocalAccess, Memory, QueuePairConfig, QueuePairCounters, READS_MAX, SendOp,
    SharedLimits, Transmit, WorkStatus, datagram_cost, sge,
};
use crate::wire::{Bth, Message, Reth, Tail};
use crate::{Psn, Qpn, Time};

/// No request starts while more packets than this are on their way, so that together with the
/// longest message they stay within half the space of sequence numbers.
const PACKETS_AHEAD: u32 = 1 << 21;

const _: () =
    assert!(PACKETS_AHEAD + crate::rc::MESSAGE_MAX_BYTES / 256 < 1 << 23, "serial numbers compare");

/// An RDMA READ is not cut into requests of fewer packets than this only because the budget is low.
const READ_PACKETS_MIN: u32 = 8;

/// Requests whose completion nobody wants to know of go without asking for an acknowledgement for
/// this long. It is less than the time after which something is sent again, and acknowledges a few
/// of many connections' commands together.
const ASK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Requester {
    pub(super) queue: SendQueue,
    pub(super) reads: OutstandingReads,
    /// Responses that came before one that is missing, and were placed. At most as much is asked
    /// for as it has room for: the rest would be dropped if the oldest is lost.
    pub(super) early: PsnSet,
    pub(super) retransmit_timer: RetransmitTimer,
    pub(super) unacknowledged: Psn,
    pub(super) confirmed: Psn,
    pub(super) next: Psn,
    pub(super) high: Psn,
    /// The request that `next` belongs to.
    pub(super) cursor: u64,
    /// Requests before this position have started: they have sequence numbers, or were done
    /// locally.
    pub(super) started: u64,
    /// Charge of `confirmed..next` to the window.
    pub(super) charged: u64,
    /// Charge for packets that will be sent again while their first copies may still fill the
    /// peer's receive buffer.
    pub(super) stale: u64,
    /// Bytes charged since an acknowledgement was last asked for.
    unsolicited_bytes: u64,
    /// The latest packet that asked for an acknowledgement.
    asked: Option<Psn>,
    /// Time when that packet was sent.
    asked_at: Option<Time>,
    /// A packet whose round trip is being measured.
    pub(super) timed: Option<(Psn, Time)>,
    pub(super) recovery: Recovery,
    /// Receiver-not-ready answers since the peer last executed something. They are counted through
    /// several waits, and what is between them.
    pub(super) not_ready_count: u8,
    /// The next packet waits until then, since packets are paced.
    paced_until: Option<Time>,
    /// Where and when packets were last sent again because the peer reported a gap. Echoes of that
    /// report come in every state of the recovery: its probe may be answered by RDMA READ
    /// responses, refused for want of a receive, or followed by silence.
    pub(super) reported_gap: Option<(Psn, Time)>,
    /// Repair of reads, which is no state of the recovery: responses that were sent before the
    /// requester went back may still come, and show what is missing among them.
    pub(super) read_repair: ReadRepair,
    /// If the peer agreed to recover selectively.
    pub(super) request_repair: Option<Box<RequestRepair>>,
    pub(super) mtu: u32,
    peer: Qpn,
    initiator_depth: usize,
    pub(super) rnr_retry_count: u8,
    /// The peer says when packets are lost to its receive buffer.
    reports_overflow: bool,
}

/// A send request failed, and the queue pair with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendFailure {
    pub(super) position: u64,
    pub(super) status: WorkStatus,
}

impl Requester {
    /// A requester with room for some of what was granted.
    pub(super) fn new(granted: &QueuePairConfig, room: &QueuePairConfig) -> Self {
        Self {
            queue: SendQueue::new(granted, room),
            reads: OutstandingReads::new(),
            early: PsnSet::new(),
            retransmit_timer: RetransmitTimer::new(),
            unacknowledged: Psn::new(0),
            confirmed: Psn::new(0),
            next: Psn::new(0),
            high: Psn::new(0),
            cursor: 0,
            started: 0,
            charged: 0,
            stale: 0,
            unsolicited_bytes: 0,
            asked: None,
            asked_at: None,
            timed: None,
            recovery: Recovery::Idle,
            not_ready_count: 0,
            paced_until: None,
            reported_gap: None,
            read_repair: ReadRepair::new(),
            request_repair: None,
            mtu: 256,
            peer: Qpn::new(0),
            initiator_depth: 0,
            rnr_retry_count: 0,
            reports_overflow: false,
        }
    }

    pub(super) fn connect(&mut self, connection: &ConnectionParams) {
        self.retransmit_timer = RetransmitTimer::for_connection(connection);
        self.unacknowledged = connection.send_psn;
        self.confirmed = connection.send_psn;
        self.next = connection.send_psn;
        self.high = connection.send_psn;
        self.mtu = connection.path_mtu.bytes() as u32;
        self.peer = connection.remote_qpn;
        self.initiator_depth = usize::from(connection.initiator_depth).min(READS_MAX);
        self.rnr_retry_count = connection.rnr_retry_count;
        self.reports_overflow = connection.reports_overflow;
        self.request_repair = connection.selective_recovery.then(|| Box::new(RequestRepair::new()));
    }

    /// Whether BECN in an answer says that the peer's receive buffer overflowed, and not that the
    /// network is congested.
    pub(super) const fn reports_overflow(&self) -> bool {
        self.reports_overflow
    }

    /// Cause of the loss of packets that an answer with this BECN shows to be missing.
    pub(super) const fn cause_of_loss(&self, becn: bool) -> LossCause {
        if becn || !self.reports_overflow { LossCause::ReceiveBuffer } else { LossCause::Network }
    }

    /// Whether there is something to send, as far as that depends on this queue pair alone.
    pub(super) fn wants(&self) -> bool {
        !self.recovery.is_waiting()
            && (self.due_repair().is_some()
                || self.due_tail_probe().is_some()
                || self.repairs_requests()
                || self.wants_next())
    }

    /// The responses that are to be asked for again.
    pub(super) fn due_repair(&self) -> Option<(Psn, Psn)> {
        self.read_repair.due(self.unacknowledged, &self.reads, &self.early)
    }

    /// The response that is to be asked for again to find out which are lost.
    fn due_tail_probe(&self) -> Option<Psn> {
        let last = self.reads.iter().last().filter(|_| self.read_repair.is_probe_due())?;
        Some(last.end.minus(1))
    }

    /// Responses are expected from now on.
    pub(super) fn expect_responses(&mut self, now: Time, limits: &SharedLimits<'_>) {
        let lossy = limits.window.lost_responses() || self.read_repair.has_gap();
        let expected = lossy && !self.reads.is_empty();
        let round_trip = expected.then(|| limits.window.round_trip()).flatten();
        self.read_repair.expect(now, round_trip);
    }

    /// Whether packets that the peer misses are to be sent again before anything else.
    fn repairs_requests(&self) -> bool {
        self.recovery == Recovery::Idle
            && self.request_repair.as_ref().is_some_and(|repair| repair.is_due())
    }

    /// Whether the packet at `next` may be sent.
    fn wants_next(&self) -> bool {
        if self.cursor == self.queue.tail() {
            return false;
        }
        if self.recovery.probe().is_some_and(|probe| probe.psn != self.next) {
            return false;
        }
        let entry = self.queue.get(self.cursor);
        let fenced = self.cursor == self.started && entry.flags.fence && !self.reads.is_empty();
        !fenced && !self.lacks_read_room(entry)
    }

    /// The next packet, if there is one: returns whether `out` holds it.
    pub(super) fn poll(
        &mut self,
        now: Time,
        qpn: Qpn,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
        completions: &mut Completions,
        out: &mut Transmit,
    ) -> Result<bool, SendFailure> {
        if self.recovery.is_waiting() {
            return Ok(false);
        }
        if let Some((first, end)) = self.due_repair() {
            self.read_repair.asked(first, end, self.high);
            self.emit_repair(now, first, end, limits, out);
            self.expect_responses(now, limits);
            return Ok(true);
        }
        if let Some(last) = self.due_tail_probe() {
            self.read_repair.probed(last);
            self.emit_repair(now, last, last.next(), limits, out);
            return Ok(true);
        }
        if self.repairs_requests() {
            return self.emit_missing(now, memory, limits, out);
        }
        while self.wants_next() {
            if self.has_arrived(self.next) {
                self.skip_to(self.next.next());
                continue;
            }
            if self.cursor == self.started {
                if self.next.since(self.unacknowledged) > PACKETS_AHEAD {
                    return Ok(false);
                }
                self.start(qpn, memory, completions)?;
                continue;
            }
            return match self.queue.get(self.cursor).op {
                SendOp::RdmaRead { .. } => Ok(self.emit_read(now, limits, out)),
                _ => self.emit_payload(now, memory, limits, out),
            };
        }
        Ok(false)
    }

    /// Starts the request at the cursor: gives it its sequence numbers, or does it if it is a local
    /// one.
    fn start(
        &mut self,
        qpn: Qpn,
        memory: &mut impl Memory,
        completions: &mut Completions,
    ) -> Result<(), SendFailure> {
        let position = self.cursor;
        let fail = |status| SendFailure { position, status };
        let entry = self.queue.get(position);
        let packets = entry.packets_at(self.mtu).ok_or(fail(WorkStatus::LocalLength))?;
        match entry.op {
            SendOp::Bind(bind) => {
                memory.bind(qpn, &bind).map_err(|_| fail(WorkStatus::WindowBind))?;
            }
            SendOp::LocalInvalidate { rkey } => {
                memory.invalidate(qpn, rkey).map_err(|_| fail(WorkStatus::WindowBind))?;
            }
            SendOp::RdmaRead { .. } if self.initiator_depth == 0 => {
                return Err(fail(WorkStatus::LocalOperation));
            }
            SendOp::RdmaRead { .. } => {
                for sge in self.queue.sges(position).iter().filter(|sge| sge.length > 0) {
                    memory
                        .check_local(sge.lkey, sge.addr, sge.length, LocalAccess::Write)
                        .map_err(|_| fail(WorkStatus::LocalProtection))?;
                }
            }
            SendOp::Send | SendOp::SendWithInvalidate { .. } | SendOp::RdmaWrite { .. } => {}
        }
        let first = self.next;
        let entry = self.queue.get_mut(position);
        (entry.first, entry.packets) = (first, packets);
        self.started += 1;
        if packets == 0 {
            self.cursor += 1;
            self.retire(completions);
        }
        Ok(())
    }

    /// The next packet of a SEND or an RDMA WRITE.
    fn emit_payload(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
        out: &mut Transmit,
    ) -> Result<bool, SendFailure> {
        if self.ahead_of_confirmed() >= PsnSet::REACH {
            return Ok(false);
        }
        let entry = *self.queue.get(self.cursor);
        let index = self.next.since(entry.first);
        let cost = self.packet_cost(&entry, index);
        if self.recovery.probe().is_none()
            && let Err(wait) = limits.window.admits(now, cost)
        {
            self.wait(wait);
            return Ok(false);
        }
        limits.window.charge(cost);
        self.charged += cost;
        self.unsolicited_bytes += cost;
        limits.window.add_unsolicited(cost);
        let asks = self.asks(now, &entry, index + 1 == entry.packets, limits);
        self.write_packet(self.cursor, index, asks, memory, out)?;
        self.sent(now, 1, asks, limits, out);
        Ok(true)
    }

    /// The oldest packet that the peer misses and that was not sent again yet. It asks for an
    /// acknowledgement.
    fn emit_missing(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
        out: &mut Transmit,
    ) -> Result<bool, SendFailure> {
        let (first, end) = (self.confirmed, self.confirmed.plus(PsnSet::REACH));
        let repair = self.request_repair.as_ref();
        let Some(psn) = repair.and_then(|repair| repair.first_due(first, end)) else {
            return Ok(false);
        };
        let position = self.position_of(psn);
        let entry = *self.queue.get(position);
        if let Some(read) = self.reads.containing(psn) {
            self.start_read(&entry, psn, read.end.since(psn), out);
        } else {
            let index = psn.since(entry.first);
            let cost = self.packet_cost(&entry, index);
            if let Err(wait) = limits.window.admits(now, cost) {
                self.wait(wait);
                return Ok(false);
            }
            limits.window.charge(cost);
            self.charged += cost;
            self.write_packet(position, index, true, memory, out)?;
        }
        self.sent_again(now, psn, limits, out);
        Ok(true)
    }

    /// Notes that `out` stands for a packet that the peer misses.
    fn sent_again(&mut self, now: Time, psn: Psn, limits: &SharedLimits<'_>, out: &mut Transmit) {
        out.mark_retransmission();
        if let Some(repair) = &mut self.request_repair {
            repair.sent_again(now, psn, self.high);
        }
        self.timed = self.timed.filter(|(timed, _)| *timed != psn);
        if self.asked.is_none_or(|asked| asked.is_before(psn)) {
            self.asked = Some(psn);
        }
        if psn == self.unacknowledged {
            self.retransmit_timer.restart();
        }
        self.start_clock(now, limits);
    }

    /// Fills `out` with packet `index` of a SEND or an RDMA WRITE.
    fn write_packet(
        &self,
        position: u64,
        index: u32,
        asks: bool,
        memory: &impl Memory,
        out: &mut Transmit,
    ) -> Result<(), SendFailure> {
        let entry = self.queue.get(position);
        let offset = index * self.mtu;
        let length = self.packet_bytes(entry, index);
        let mut bth = Bth::new(self.peer, entry.first.plus(index));
        bth.solicited = index + 1 == entry.packets && entry.flags.solicited;
        bth.ack_request = asks;
        out.start(bth, &message(entry, index, offset, length), length);
        match self.queue.bytes(position) {
            PayloadSource::Inline(bytes) => {
                out.push_inline(&bytes[offset as usize..(offset + length) as usize]);
            }
            PayloadSource::Regions(sges) => {
                let status = WorkStatus::LocalProtection;
                for piece in sge::pieces(sges, offset, length) {
                    memory
                        .check_local(piece.lkey, piece.addr, piece.length, LocalAccess::Read)
                        .map_err(|_| SendFailure { position, status })?;
                    out.push_piece(piece.into());
                }
            }
        }
        Ok(())
    }

    /// An RDMA READ request for responses `first..end`, which are missing.
    fn emit_repair(
        &mut self,
        now: Time,
        first: Psn,
        end: Psn,
        limits: &SharedLimits<'_>,
        out: &mut Transmit,
    ) {
        let entry = *self.queue.get(self.position_of(first));
        self.start_read(&entry, first, end.since(first), out);
        out.mark_retransmission();
        self.start_clock(now, limits);
    }

    /// The next RDMA READ request: again what was asked for before, or as much as the budget
    /// allows.
    fn emit_read(&mut self, now: Time, limits: &mut SharedLimits<'_>, out: &mut Transmit) -> bool {
        let entry = *self.queue.get(self.cursor);
        let packets = match self.reads.containing(self.next) {
            Some(read) => read.end.since(self.next),
            None => match self.ask_for(now, &entry, self.next.since(entry.first), limits) {
                0 => return false,
                packets => packets,
            },
        };
        self.start_read(&entry, self.next, packets, out);
        self.expect_responses(now, limits);
        self.sent(now, packets, true, limits, out);
        true
    }

    /// Fills `out` with a congestion notification.
    pub(super) fn emit_notification(&self, out: &mut Transmit) {
        out.start(Bth::notification(self.peer), &Message::CongestionNotification, 0);
    }

    /// Fills `out` with the request for `packets` response packets from `psn` on.
    fn start_read(&self, entry: &SendEntry, psn: Psn, packets: u32, out: &mut Transmit) {
        let SendOp::RdmaRead { remote_addr, rkey } = entry.op else { return };
        let offset = psn.since(entry.first) * self.mtu;
        let length = packets.saturating_mul(self.mtu).min(entry.length - offset);
        let addr = remote_addr.wrapping_add(u64::from(offset));
        let mut bth = Bth::new(self.peer, psn);
        bth.ack_request = true;
        out.start(bth, &Message::ReadRequest(Reth { addr, rkey, length }), 0);
    }

    /// Makes a new READ request for what packet `index` begins; returns for how many packets.
    fn ask_for(
        &mut self,
        now: Time,
        entry: &SendEntry,
        index: u32,
        limits: &mut SharedLimits<'_>,
    ) -> u32 {
        let wanted = entry.packets - index;
        let packet_bytes = entry.length.min(self.mtu);
        let within_reach = PsnSet::REACH.saturating_sub(self.next.since(self.unacknowledged));
        let wanted_now = wanted.min(within_reach);
        let (handled, admitted) =
            (limits.reads.handled_until(), limits.reads.admits(wanted_now, packet_bytes));
        let responses = limits.window.admits_responses(handled, admitted, packet_bytes);
        if responses < admitted {
            limits.reads.retry_at(limits.window.forgets_responses_at());
        }
        let admitted = responses;
        if admitted < wanted.min(READ_PACKETS_MIN) && !self.reads.is_empty() || admitted == 0 {
            return 0;
        }
        let packets = match limits.window.pace_responses(now, admitted, packet_bytes) {
            Ok(packets) => packets,
            Err(time) => {
                self.wait(Wait::Until(time));
                return 0;
            }
        };
        let period = limits.reads.charge(now, packets, packet_bytes);
        let window_period = limits.window.charge_responses(now, packets, packet_bytes);
        let (first, end) = (self.next, self.next.plus(packets));
        self.reads.push(OutstandingRead { first, end, packet_bytes, period, window_period });
        packets
    }

    /// Moves the marks past the packets that `out` stands for.
    fn sent(
        &mut self,
        now: Time,
        packets: u32,
        asked: bool,
        limits: &mut SharedLimits<'_>,
        out: &mut Transmit,
    ) {
        if self.next.is_before(self.high) {
            if self.recovery.probe().is_none_or(|probe| probe.cause != Cause::AckNotRequested) {
                out.mark_retransmission();
            }
        } else if asked && self.timed.is_none() {
            self.timed = Some((self.next, now));
        }
        if asked {
            self.clear_unsolicited(limits);
            self.asked = Some(self.next);
            self.asked_at = Some(now);
        }
        self.skip_to(self.next.plus(packets));
        if self.high.is_before(self.next) {
            self.high = self.next;
        }
        self.start_clock(now, limits);
    }

    /// Something that wants an answer is on its way: the clock runs from now on, if it does not
    /// already.
    pub(super) fn start_clock(&mut self, now: Time, limits: &SharedLimits<'_>) {
        if self.retransmit_timer.deadline().is_none() {
            let retransmit_after = self.retransmit_after(limits);
            self.retransmit_timer.sent(now, retransmit_after);
        }
    }

    /// How long to wait for an answer to the oldest packet. Repeating a READ is expensive: it is
    /// not done lightly.
    pub(super) fn retransmit_after(&self, limits: &SharedLimits<'_>) -> Duration {
        let reading = self.reads.first_missing(self.unacknowledged) == Some(self.unacknowledged);
        let floor = if reading { READ_AGAIN_AFTER } else { Duration::ZERO };
        limits.window.retransmit_after().max(floor)
    }

    /// Whether a packet asks for an acknowledgement: at the end of a request whose completion is
    /// wanted, before something that needs the answer, at the end of what there is to send unless
    /// it asked lately, and often enough to keep the window and the queue moving.
    fn asks(&self, now: Time, entry: &SendEntry, last: bool, limits: &SharedLimits<'_>) -> bool {
        let end = last
            && (entry.flags.signaled || {
                let following = self.cursor + 1;
                if following == self.queue.tail() {
                    !self.asked_lately(now)
                } else {
                    let following = self.queue.get(following);
                    following.flags.fence || !following.carries_payload()
                }
            });
        end || self.recovery.probe().is_some()
            || limits.window.needs_ack_request(self.unsolicited_bytes)
            || self.queue.is_half_full()
            || !self.awaits_acknowledgement()
                && (limits.window.is_closing() || self.ahead_of_confirmed() >= PsnSet::REACH / 2)
    }

    /// How many packets were sent to a peer that remembers which of them came, and are not
    /// confirmed.
    fn ahead_of_confirmed(&self) -> u32 {
        let ahead = self.request_repair.is_some() && self.confirmed.is_before(self.next);
        if ahead { self.next.since(self.confirmed) } else { 0 }
    }

    /// Whether the peer has received a packet that was sent, though not all before it.
    pub(super) fn has_arrived(&self, psn: Psn) -> bool {
        psn.is_before(self.high)
            && self.request_repair.as_ref().is_some_and(|repair| repair.has_arrived(psn))
    }

    /// The next packet may not leave yet.
    fn wait(&mut self, wait: Wait) {
        self.paced_until = match wait {
            Wait::Room => None,
            Wait::Until(time) => Some(time),
        };
    }

    fn asked_lately(&self, now: Time) -> bool {
        let again = self.next.is_before(self.high);
        !again && self.asked_at.is_some_and(|at| now - at < ASK_EVERY)
    }

    /// Whether something was asked that is not answered yet.
    fn awaits_acknowledgement(&self) -> bool {
        self.asked.is_some_and(|asked| !asked.is_before(self.confirmed))
    }

    /// Moves `next` forward to `to`, and the cursor to the request that it belongs to. What was
    /// done locally in between is not done again.
    pub(super) fn skip_to(&mut self, to: Psn) {
        self.next = to;
        while self.cursor < self.started && !to.is_before(self.queue.get(self.cursor).end()) {
            self.cursor += 1;
        }
    }

    /// Sets `next` back to the oldest packet that needs to be sent again, which is returned. That
    /// packet leaves first, alone.
    #[must_use]
    pub(super) fn set_back(&mut self, cause: Cause, limits: &mut SharedLimits<'_>) -> Probe {
        let psn = match cause {
            Cause::Silence | Cause::AckNotRequested => self.unacknowledged,
            Cause::Gap | Cause::NotReady => self.confirmed,
        };
        self.stale += core::mem::take(&mut self.charged);
        if cause != Cause::Gap {
            self.release_stale(limits);
        }
        self.clear_unsolicited(limits);
        self.asked = None;
        self.timed = None;
        if let Some(repair) = &mut self.request_repair {
            repair.set_back();
        }
        self.cursor = self.queue.head();
        self.skip_to(psn);
        self.retransmit_timer.restart();
        Probe { psn, cause, reads: self.reads.containing(psn).is_some() }
    }

    /// Goes back, and sends again from now on.
    pub(super) fn go_back(&mut self, cause: Cause, limits: &mut SharedLimits<'_>) {
        let probe = self.set_back(cause, limits);
        self.recovery.went_back(probe);
    }

    /// Forgets the bytes sent without asking: they were asked for, are acknowledged anyway, or will
    /// be sent again.
    pub(super) fn clear_unsolicited(&mut self, limits: &mut SharedLimits<'_>) {
        limits.window.asked(core::mem::take(&mut self.unsolicited_bytes));
    }

    pub(super) fn release_stale(&mut self, limits: &mut SharedLimits<'_>) {
        limits.window.release(core::mem::take(&mut self.stale));
    }

    /// Ends a receiver-not-ready wait, or goes back because nothing arrived for too long. In that
    /// case the oldest packet, which leaves alone, finds out whether the peer is slow or packets
    /// were lost. That packet asks as well for what was sent without asking: there is no other
    /// question to which the answer is an acknowledgement.
    pub(super) fn handle_deadline(
        &mut self,
        now: Time,
        limits: &mut SharedLimits<'_>,
        counters: &mut QueuePairCounters,
    ) -> Result<(), SendFailure> {
        self.recovery.time_passed(now);
        self.paced_until = self.paced_until.filter(|time| *time > now);
        self.read_repair.time_passed(now);
        self.repair_late_requests(now, limits);
        if self.retransmit_timer.deadline().is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        if self.reads.is_empty() && !self.awaits_acknowledgement() {
            self.go_back(Cause::AckNotRequested, limits);
        } else {
            counters.ack_timeouts += 1;
            if !self.retransmit_timer.timed_out(now) {
                let position = self.queue.head();
                return Err(SendFailure { position, status: WorkStatus::RetryExceeded });
            }
            if self.retransmit_timer.repeated() {
                let silence = self.retransmit_timer.silence(now);
                limits.window.timed_out(now, silence);
                if !self.reads.is_empty() {
                    limits.window.responses_lost(now, silence);
                }
            }
            self.go_back(Cause::Silence, limits);
            self.read_repair.reset();
            if self.retransmit_timer.repeated()
                && let Some(repair) = &mut self.request_repair
            {
                repair.forget();
            }
        }
        Ok(())
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        let repair = self.request_repair.as_ref().and_then(|repair| repair.deadline());
        let waits = [
            self.recovery.waits_until(),
            self.paced_until,
            self.read_repair.deadline(),
            repair,
            self.retransmit_timer.deadline(),
        ];
        waits.into_iter().flatten().min()
    }

    /// Gives back its share of the shared limits; nothing is sent or expected from then on.
    pub(super) fn abandon(&mut self, limits: &mut SharedLimits<'_>) {
        limits.window.release(core::mem::take(&mut self.charged));
        self.release_stale(limits);
        self.clear_unsolicited(limits);
        for read in self.reads.iter() {
            let first = if self.unacknowledged.is_within(read.first, read.end) {
                self.unacknowledged
            } else {
                read.first
            };
            let packets = read.end.since(first);
            limits.reads.release(packets, read.packet_bytes, read.period);
            limits.window.release_responses(packets, read.packet_bytes, read.window_period);
        }
        self.reads.clear();
        self.retransmit_timer.suspend();
        self.recovery.abandoned();
        self.read_repair.reset();
        self.paced_until = None;
        if let Some(repair) = &mut self.request_repair {
            repair.forget();
        }
    }

    /// Completes the requests that are done, in order.
    pub(super) fn retire(&mut self, completions: &mut Completions) {
        while self.queue.head() < self.started {
            let entry = self.queue.get(self.queue.head());
            if self.unacknowledged.is_before(entry.end()) {
                break;
            }
            let entry = self.queue.pop();
            if entry.flags.signaled {
                completions.push_send(&entry, WorkStatus::Success);
            }
        }
        self.cursor = self.cursor.max(self.queue.head());
        if self.queue.rewind() {
            (self.cursor, self.started) = (0, 0);
        }
    }

    /// Cost of packet `index` of a request to the window.
    pub(super) fn packet_cost(&self, entry: &SendEntry, index: u32) -> u64 {
        datagram_cost(self.packet_bytes(entry, index) as usize + HEADERS_BYTES)
    }

    /// Bytes of payload in packet `index` of a request.
    pub(super) fn packet_bytes(&self, entry: &SendEntry, index: u32) -> u32 {
        self.mtu.min(entry.length - index * self.mtu)
    }

    /// How long until a measured round trip is considered over.
    pub(super) fn round_trip(limits: &SharedLimits<'_>) -> Duration {
        limits.window.round_trip().unwrap_or(Duration::from_millis(1))
    }

    fn lacks_read_room(&self, entry: &SendEntry) -> bool {
        matches!(entry.op, SendOp::RdmaRead { .. })
            && self.reads.len() >= self.initiator_depth.max(1)
            && self.reads.containing(self.next).is_none()
    }
}

/// Operation and extended headers of packet `index`, at byte `offset`, of a SEND or an RDMA WRITE.
///
/// A long WRITE is sent as a series of WRITE Onlys: packets of equal length, which First, Middle
/// and Last are not, leave in one train. The responder checks each where it would have checked the
/// whole range before it placed the first byte; what is in memory after a refusal nobody may rely
/// on either way.
fn message(entry: &SendEntry, index: u32, offset: u32, length: u32) -> Message {
    let tail = match entry.op {
        SendOp::RdmaWrite { remote_addr, rkey } => {
            let addr = remote_addr.wrapping_add(u64::from(offset));
            return Message::WriteOnly(Reth { addr, rkey, length }, None);
        }
        SendOp::SendWithInvalidate { rkey } => Tail::Invalidate(rkey),
        _ => Tail::Plain,
    };
    match (index == 0, index + 1 == entry.packets) {
        (true, true) => Message::SendOnly(tail),
        (true, false) => Message::SendFirst,
        (false, false) => Message::SendMiddle,
        (false, true) => Message::SendLast(tail),
    }
}

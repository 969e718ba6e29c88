//! The requester: sends the packets of send requests.
//!
//! All requests form one stream of PSNs with marks: everything before `unacknowledged` is done;
//! everything before `confirmed` was executed by the peer, although RDMA READ responses may be
//! missing; everything before `next` was sent and is outstanding; everything before `high` was sent
//! at least once. To retransmit, `next` is set back; no other state has to be reverted. The
//! completer, `completer.rs`, moves the marks when answers arrive.

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

/// No request starts while more packets than this are outstanding, so that together with the
/// longest message they take less than half of the PSN space.
const PACKETS_AHEAD: u32 = 1 << 21;

const _: () =
    assert!(PACKETS_AHEAD + crate::rc::MESSAGE_MAX_BYTES / 256 < 1 << 23, "serial numbers compare");

/// Minimum number of response packets of an RDMA READ request that is split because of the budget.
const READ_PACKETS_MIN: u32 = 8;

/// Interval in which unsignaled requests are sent without requesting an acknowledgement. It is
/// shorter than the retransmission timeout, and lets one acknowledgement cover several commands.
const ASK_EVERY: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct Requester {
    pub(super) queue: SendQueue,
    pub(super) reads: OutstandingReads,
    /// RDMA READ responses that were placed although an earlier one is missing. Only as many
    /// responses are requested as the set can hold: further ones would be dropped if the oldest is
    /// lost.
    pub(super) early: PsnSet,
    pub(super) retransmit_timer: RetransmitTimer,
    pub(super) unacknowledged: Psn,
    pub(super) confirmed: Psn,
    pub(super) next: Psn,
    pub(super) high: Psn,
    /// Position of the request that `next` belongs to.
    pub(super) cursor: u64,
    /// Requests before this position have started: they have PSNs, or were carried out locally.
    pub(super) started: u64,
    /// Window charge of the packets `confirmed..next`.
    pub(super) charged: u64,
    /// Window charge of packets that will be retransmitted while their first copies may still
    /// occupy the peer's receive buffer.
    pub(super) stale: u64,
    /// Bytes charged since an acknowledgement was last requested.
    unsolicited_bytes: u64,
    /// The latest packet that requested an acknowledgement.
    asked: Option<Psn>,
    /// Time at which that packet was sent.
    asked_at: Option<Time>,
    /// The packet whose round trip is being measured, and its time of sending.
    pub(super) timed: Option<(Psn, Time)>,
    pub(super) recovery: Recovery,
    /// Number of RNR NAKs since the peer last executed a packet, over several waits.
    pub(super) not_ready_count: u8,
    /// Time until which pacing delays the next packet.
    paced_until: Option<Time>,
    /// The gap for which packets were last retransmitted after a NAK, and the time. Duplicates of
    /// that NAK arrive in every recovery state, since the probe may be answered by READ responses
    /// or an RNR NAK, or not at all.
    pub(super) reported_gap: Option<(Psn, Time)>,
    /// Repair of RDMA READs, independent of the recovery state: responses requested before the
    /// requester went back may still arrive, and show what is missing among them.
    pub(super) read_repair: ReadRepair,
    /// State of selective recovery, if the peer agreed to it.
    pub(super) request_repair: Option<Box<RequestRepair>>,
    pub(super) mtu: u32,
    peer: Qpn,
    initiator_depth: usize,
    pub(super) rnr_retry_count: u8,
    /// Whether the peer reports packet losses by its receive buffer.
    reports_overflow: bool,
}

/// A failed send request, which also fails the queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendFailure {
    pub(super) position: u64,
    pub(super) status: WorkStatus,
}

impl Requester {
    /// Creates a requester with memory for the sizes `room`.
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

    /// Whether BECN in an answer means that the peer's receive buffer overflowed, not network
    /// congestion.
    pub(super) const fn reports_overflow(&self) -> bool {
        self.reports_overflow
    }

    /// The cause of losses that an answer with this BECN shows.
    pub(super) const fn cause_of_loss(&self, becn: bool) -> LossCause {
        if becn || !self.reports_overflow { LossCause::ReceiveBuffer } else { LossCause::Network }
    }

    /// Whether there is a packet to send, shared limits aside.
    pub(super) fn wants(&self) -> bool {
        !self.recovery.is_waiting()
            && (self.due_repair().is_some()
                || self.due_tail_probe().is_some()
                || self.repairs_requests()
                || self.wants_next())
    }

    /// The lost READ responses to be requested again next.
    pub(super) fn due_repair(&self) -> Option<(Psn, Psn)> {
        self.read_repair.due(self.unacknowledged, &self.reads, &self.early)
    }

    /// The READ response to be requested again as a tail probe.
    fn due_tail_probe(&self) -> Option<Psn> {
        let last = self.reads.iter().last().filter(|_| self.read_repair.is_probe_due())?;
        Some(last.end.minus(1))
    }

    /// Schedules the next tail probe.
    pub(super) fn expect_responses(&mut self, now: Time, limits: &SharedLimits<'_>) {
        let lossy = limits.window.lost_responses() || self.read_repair.has_gap();
        let expected = lossy && !self.reads.is_empty();
        let round_trip = expected.then(|| limits.window.round_trip()).flatten();
        self.read_repair.expect(now, round_trip);
    }

    /// Whether lost request packets must be retransmitted first.
    fn repairs_requests(&self) -> bool {
        self.recovery == Recovery::Idle
            && self.request_repair.as_ref().is_some_and(|repair| repair.is_due())
    }

    /// Whether the packet at `next` may be sent, shared limits aside.
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

    /// Writes the next packet to `out`; returns false if none may be sent.
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

    /// Starts the request at the cursor: assigns its PSNs, or carries it out if it is local.
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

    /// Writes the next packet of a SEND or RDMA WRITE.
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

    /// Writes the oldest lost packet that was not retransmitted yet. It requests an
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

    /// Updates the state after a lost packet was written.
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

    /// Writes packet `index` of a SEND or RDMA WRITE to `out`.
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

    /// Writes an RDMA READ request for the missing responses `first..end`.
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

    /// Writes the next RDMA READ request: a repeated one, or a new one as large as the limits
    /// allow.
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

    /// Writes a congestion notification packet to `out`.
    pub(super) fn emit_notification(&self, out: &mut Transmit) {
        out.start(Bth::notification(self.peer), &Message::CongestionNotification, 0);
    }

    /// Writes the request for `packets` responses from `psn` on to `out`.
    fn start_read(&self, entry: &SendEntry, psn: Psn, packets: u32, out: &mut Transmit) {
        let SendOp::RdmaRead { remote_addr, rkey } = entry.op else { return };
        let offset = psn.since(entry.first) * self.mtu;
        let length = packets.saturating_mul(self.mtu).min(entry.length - offset);
        let addr = remote_addr.wrapping_add(u64::from(offset));
        let mut bth = Bth::new(self.peer, psn);
        bth.ack_request = true;
        out.start(bth, &Message::ReadRequest(Reth { addr, rkey, length }), 0);
    }

    /// Charges a new RDMA READ request that begins with packet `index`; returns its number of
    /// responses.
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

    /// Advances the marks past the packets that `out` has sent or requested.
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

    /// Starts the retransmission timer unless it is running.
    pub(super) fn start_clock(&mut self, now: Time, limits: &SharedLimits<'_>) {
        if self.retransmit_timer.deadline().is_none() {
            let retransmit_after = self.retransmit_after(limits);
            self.retransmit_timer.sent(now, retransmit_after);
        }
    }

    /// Retransmission timeout of the oldest packet. It is longer for an RDMA READ, whose repetition
    /// is expensive.
    pub(super) fn retransmit_after(&self, limits: &SharedLimits<'_>) -> Duration {
        let reading = self.reads.first_missing(self.unacknowledged) == Some(self.unacknowledged);
        let floor = if reading { READ_AGAIN_AFTER } else { Duration::ZERO };
        limits.window.retransmit_after().max(floor)
    }

    /// Whether a packet requests an acknowledgement: at the end of a signaled request; before a
    /// request that needs the answer; at the end of the queue, unless one was requested recently;
    /// and often enough to keep window and queue moving.
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

    /// Number of outstanding packets towards a peer with selective recovery; 0 for others.
    fn ahead_of_confirmed(&self) -> u32 {
        let ahead = self.request_repair.is_some() && self.confirmed.is_before(self.next);
        if ahead { self.next.since(self.confirmed) } else { 0 }
    }

    /// Whether the peer has received the packet although an earlier one is missing.
    pub(super) fn has_arrived(&self, psn: Psn) -> bool {
        psn.is_before(self.high)
            && self.request_repair.as_ref().is_some_and(|repair| repair.has_arrived(psn))
    }

    /// Records why the next packet may not be sent yet.
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

    /// Whether a requested acknowledgement is outstanding.
    fn awaits_acknowledgement(&self) -> bool {
        self.asked.is_some_and(|asked| !asked.is_before(self.confirmed))
    }

    /// Advances `next` to `to`, and the cursor to its request. Local requests in between are not
    /// repeated.
    pub(super) fn skip_to(&mut self, to: Psn) {
        self.next = to;
        while self.cursor < self.started && !to.is_before(self.queue.get(self.cursor).end()) {
            self.cursor += 1;
        }
    }

    /// Sets `next` back to the oldest packet to retransmit, which becomes the probe.
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

    /// Goes back, and sends the probe without delay.
    pub(super) fn go_back(&mut self, cause: Cause, limits: &mut SharedLimits<'_>) {
        let probe = self.set_back(cause, limits);
        self.recovery.went_back(probe);
    }

    /// Resets the count of bytes sent without requesting an acknowledgement: one was requested,
    /// they are acknowledged, or will be retransmitted.
    pub(super) fn clear_unsolicited(&mut self, limits: &mut SharedLimits<'_>) {
        limits.window.asked(core::mem::take(&mut self.unsolicited_bytes));
    }

    pub(super) fn release_stale(&mut self, limits: &mut SharedLimits<'_>) {
        limits.window.release(core::mem::take(&mut self.stale));
    }

    /// Ends an RNR wait, or goes back after a retransmission timeout. The probe shows whether the
    /// peer is slow or packets were lost. It is also sent if no acknowledgement had been requested,
    /// since only a packet can request one.
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

    /// Releases its share of the shared limits; nothing is sent or expected afterwards.
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

    /// Window cost of packet `index` of a request.
    pub(super) fn packet_cost(&self, entry: &SendEntry, index: u32) -> u64 {
        datagram_cost(self.packet_bytes(entry, index) as usize + HEADERS_BYTES)
    }

    /// Payload bytes of packet `index` of a request.
    pub(super) fn packet_bytes(&self, entry: &SendEntry, index: u32) -> u32 {
        self.mtu.min(entry.length - index * self.mtu)
    }

    /// The smoothed round-trip time; 1 ms before the first sample.
    pub(super) fn round_trip(limits: &SharedLimits<'_>) -> Duration {
        limits.window.round_trip().unwrap_or(Duration::from_millis(1))
    }

    fn lacks_read_room(&self, entry: &SendEntry) -> bool {
        matches!(entry.op, SendOp::RdmaRead { .. })
            && self.reads.len() >= self.initiator_depth.max(1)
            && self.reads.containing(self.next).is_none()
    }
}

/// The opcode and extended headers of packet `index`, at byte `offset`, of a SEND or RDMA WRITE.
///
/// A long RDMA WRITE is sent as a series of WRITE Only packets, since these have equal lengths and
/// fit one UDP GSO batch, unlike First, Middle and Last. The responder then checks the range of
/// each packet instead of the whole range before the first; in both cases the memory contents after
/// a failure are undefined.
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

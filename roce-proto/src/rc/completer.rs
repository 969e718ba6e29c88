//! The completer: processes acknowledgements and RDMA READ responses for the requester.

use core::time::Duration;

use crate::rc::completions::Completions;
use crate::rc::congestion::LossCause;
use crate::rc::datagram_cost::HEADERS_BYTES;
use crate::rc::psn_set::PsnSet;
use crate::rc::recovery::{Cause, Probe, Recovery};
use crate::rc::request_repair;
use crate::rc::requester::{Requester, SendFailure};
use crate::rc::selective_ack::SelectiveAck;
use crate::rc::{Memory, QueuePairCounters, SendOp, SharedLimits, WorkStatus, datagram_cost, sge};
use crate::wire::{Aeth, NakCode, RnrTimer, Syndrome};
use crate::{Psn, Time};

/// Context in which the requester processes an acknowledgement or response.
pub(super) struct Answers<'a, 'b> {
    pub(super) now: Time,
    pub(super) limits: &'a mut SharedLimits<'b>,
    pub(super) completions: &'a mut Completions,
    pub(super) counters: &'a mut QueuePairCounters,
    /// The cause to report if the packet shows that packets were lost.
    pub(super) cause: LossCause,
}

impl Requester {
    /// Handles an ACK, RNR NAK or NAK for packet `psn`.
    pub(super) fn handle_acknowledge(
        &mut self,
        psn: Psn,
        aeth: &Aeth,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), SendFailure> {
        if !psn.is_within(self.unacknowledged, self.high) {
            with.counters.packets_dropped += 1;
            return Ok(());
        }
        with.counters.packets_received += 1;
        match aeth.syndrome {
            Syndrome::Ack { .. } => self.confirm(psn.next(), with),
            Syndrome::Nak(NakCode::PSN_SEQUENCE) => return self.handle_gap(psn, with),
            Syndrome::RnrNak(timer) => return self.handle_not_ready(psn, timer, with),
            Syndrome::Nak(code) => return self.handle_refusal(psn, code, with),
            Syndrome::Reserved(_) => {}
        }
        Ok(())
    }

    /// Handles a packet of an RDMA READ response, which also confirms that everything before it was
    /// executed. Its opcode (First, Middle, ...) is ignored, since a responder that repeats a part
    /// may begin with any; PSN and length suffice. The payload is placed even if packets before it
    /// are missing. If its AETH is a NAK, it is handled as a NAK.
    pub(super) fn handle_response(
        &mut self,
        psn: Psn,
        aeth: Option<&Aeth>,
        payload: &[u8],
        memory: &mut impl Memory,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), SendFailure> {
        let due = psn.is_within(self.unacknowledged, self.high);
        if !due || self.reads.containing(psn).is_none() {
            with.counters.packets_dropped += 1;
            return Ok(());
        }
        match aeth.map(|aeth| (aeth, aeth.syndrome)) {
            None | Some((_, Syndrome::Ack { .. })) => {}
            Some((_, Syndrome::Reserved(_))) => {
                with.counters.packets_dropped += 1;
                return Ok(());
            }
            Some((aeth, _)) => return self.handle_acknowledge(psn, aeth, with),
        }
        self.confirm(psn, with);
        self.read_repair.came(psn);
        let ahead = psn.since(self.unacknowledged);
        if ahead >= PsnSet::REACH || !self.early.insert(psn) {
            with.counters.packets_dropped += 1;
            return Ok(());
        }
        self.place_response(psn, payload, memory)?;
        with.counters.packets_received += 1;
        with.counters.payload_bytes_received += payload.len() as u64;
        self.confirm(psn.next(), with);
        self.complete_answered(with);
        self.report_lost_responses(with);
        self.expect_responses(with.now, with.limits);
        Ok(())
    }

    fn place_response(
        &self,
        psn: Psn,
        payload: &[u8],
        memory: &mut impl Memory,
    ) -> Result<(), SendFailure> {
        let position = self.position_of(psn);
        let entry = self.queue.get(position);
        let index = psn.since(entry.first);
        if payload.len() != self.packet_bytes(entry, index) as usize {
            return Err(SendFailure { position, status: WorkStatus::BadResponse });
        }
        sge::scatter(memory, self.queue.sges(position), index * self.mtu, payload)
            .map_err(|_| SendFailure { position, status: WorkStatus::LocalProtection })
    }

    /// Reports a loss to the response window if later responses show that some were lost.
    fn report_lost_responses(&mut self, with: &mut Answers<'_, '_>) {
        if let Some((first, _)) = self.due_repair()
            && self.read_repair.is_news(first, self.high)
        {
            with.limits.window.responses_lost(with.now, Duration::ZERO);
        }
    }

    /// Records that the peer executed everything before `to`.
    fn confirm(&mut self, to: Psn, with: &mut Answers<'_, '_>) {
        if !self.confirmed.is_before(to) {
            return;
        }
        let released = if to.is_before(self.next) { self.cost_before(to) } else { self.charged };
        let timed = self.timed.take_if(|(psn, _)| psn.is_before(to));
        let sample = timed.map(|(_, sent)| with.now - sent);
        if sample.is_some() {
            self.retransmit_timer.measured();
        }
        with.limits.window.acknowledged(with.now, released, sample);
        self.charged -= released;
        self.release_stale(with.limits);
        let from = core::mem::replace(&mut self.confirmed, to);
        if !to.is_before(self.next) {
            self.clear_unsolicited(with.limits);
        }
        self.not_ready_count = 0;
        if let Some(probe) = self.recovery.confirmed() {
            self.judge(probe, with);
        }
        if let Some(repair) = &mut self.request_repair {
            repair.confirmed(from, to, self.next);
        }
        if self.next.is_before(to) {
            self.skip_to(to);
        }
        self.complete_answered(with);
        if self.unacknowledged != self.high {
            // A packet to be retransmitted, which would have started the timer, may no longer need
            // to be.
            self.start_clock(with.now, with.limits);
        }
    }

    /// Advances `unacknowledged` to the first missing response, or else to `confirmed`, and
    /// completes finished requests.
    fn complete_answered(&mut self, with: &mut Answers<'_, '_>) {
        let before = self.unacknowledged;
        loop {
            match self.reads.first_missing(self.unacknowledged) {
                Some(psn) if psn.is_before(self.confirmed) => {
                    self.pass_to(psn);
                    if !self.early.contains(self.unacknowledged) {
                        break;
                    }
                    self.pass_response(with.now, with.limits);
                }
                _ => {
                    self.pass_to(self.confirmed);
                    break;
                }
            }
        }
        if self.unacknowledged != before {
            if let Some(probe) = self.recovery.responses_came() {
                self.judge(probe, with);
            }
            self.read_repair.passed(self.unacknowledged);
            self.retire(with.completions);
            let more = self.unacknowledged != self.high;
            let next = more.then(|| self.retransmit_after(with.limits));
            self.retransmit_timer.answered(with.now, next);
        }
    }

    fn pass_to(&mut self, psn: Psn) {
        self.early.remove_range(self.unacknowledged, psn);
        self.unacknowledged = psn;
    }

    /// Advances past the oldest response, which has arrived.
    fn pass_response(&mut self, now: Time, limits: &mut SharedLimits<'_>) {
        if let Some(read) = self.reads.front().copied() {
            limits.reads.release(1, read.packet_bytes, read.period);
            limits.window.response_came(now, read.packet_bytes, read.window_period);
            if read.end == self.unacknowledged.next() {
                self.reads.pop();
            }
        }
        self.pass_to(self.unacknowledged.next());
    }

    /// Handles the answer to the probe after going back. If the cause was a timeout and the answer
    /// covers more than the probe, the peer has the packets sent before and was only slow: they are
    /// not retransmitted. For an RDMA READ probe, nothing more is retransmitted either, since that
    /// is expensive: later answers show what was lost. If the cause was that no acknowledgement had
    /// been requested, an answer that covers everything shows that nothing was lost.
    fn judge(&mut self, probe: Probe, with: &mut Answers<'_, '_>) {
        let unsolicited = match probe.cause {
            Cause::Silence => false,
            Cause::AckNotRequested => true,
            Cause::Gap | Cause::NotReady => return,
        };
        let sent_probe = self.next != probe.psn;
        // If the packets after the probe had arrived, the answer covers them even if the probe was
        // lost.
        let covers_more =
            self.confirmed.since(probe.psn) > 1 && !self.has_arrived(probe.psn.next());
        let covers_all = self.confirmed == self.high;
        if covers_more || probe.reads || !sent_probe || unsolicited && covers_all {
            with.counters.spurious_timeouts += u64::from(!unsolicited);
            self.skip_to(self.high);
            let outstanding = self.cost_before(self.high);
            with.limits.window.charge(outstanding - self.charged);
            self.charged = outstanding;
        } else {
            let silence = self.retransmit_timer.silence(with.now);
            with.limits.window.lost(with.now, silence, with.cause);
        }
    }

    /// Handles a selective acknowledgement: of everything before a missing packet, and of some
    /// packets after it. An invalid or outdated one is dropped.
    pub(super) fn handle_selective_acknowledge(
        &mut self,
        aeth: &Aeth,
        ack: Option<SelectiveAck<'_>>,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), SendFailure> {
        let positive = matches!(aeth.syndrome, Syndrome::Ack { .. });
        let proper = |ack: &SelectiveAck<'_>| {
            self.request_repair.is_some()
                && positive
                && ack.expected.is_within(self.confirmed, self.high)
                && ack.latest.is_within(self.confirmed, self.high)
        };
        let Some(ack) = ack.filter(proper) else {
            with.counters.packets_dropped += 1;
            return Ok(());
        };
        with.counters.packets_received += 1;
        with.counters.sequence_naks_received += 1;
        self.confirm(ack.expected, with);
        if let Some(repair) = &mut self.request_repair {
            repair.told(ack.latest);
        }
        self.note_arrived(&ack, with);
        if self.recovery != Recovery::Idle {
            return Ok(());
        }
        if self.retransmit_timer.is_exhausted(with.now) {
            let position = self.position_of(ack.expected);
            return Err(SendFailure { position, status: WorkStatus::RetryExceeded });
        }
        self.plan_request_repair(ack.latest, with);
        Ok(())
    }

    /// If the peer's answers are late, retransmits everything that is missing before the latest
    /// packet that the peer has received.
    pub(super) fn repair_late_requests(&mut self, now: Time, limits: &mut SharedLimits<'_>) {
        let repair = self.request_repair.as_mut();
        let Some(latest) = repair.and_then(|repair| repair.late(now)) else { return };
        if self.recovery == Recovery::Idle
            && self.plan_missing(self.confirmed, latest.next(), |_| true, limits)
        {
            limits.window.lost(now, Duration::ZERO, self.cause_of_loss(false));
        }
    }

    /// Releases the packets of RDMA WRITEs that are newly reported as received. Packets of other
    /// operations are only received in order.
    fn note_arrived(&mut self, ack: &SelectiveAck<'_>, with: &mut Answers<'_, '_>) {
        let (mut released, mut sample) = (0, None);
        let mut position = self.queue.head();
        for (first, mut word) in ack.words() {
            while word != 0 {
                let psn = first.plus(word.trailing_zeros());
                word &= word - 1;
                let Some(at) = self.position_from(position, psn) else { break };
                position = at;
                let entry = *self.queue.get(at);
                let charged = psn.is_before(self.next) && !self.is_released(psn);
                if !matches!(entry.op, SendOp::RdmaWrite { .. }) || !self.arrived(psn) {
                    continue;
                }
                if charged {
                    released += self.packet_cost(&entry, psn.since(entry.first));
                }
                sample = sample.or(self.timed.take_if(|(timed, _)| *timed == psn));
            }
        }
        let sample = sample.map(|(_, sent)| with.now - sent);
        if sample.is_some() {
            self.retransmit_timer.measured();
        }
        self.charged -= released;
        with.limits.window.acknowledged(with.now, released, sample);
    }

    /// Determines which packets are missing: those sent before packets that the peer has received;
    /// the last of these is `latest`. If packets that are accepted only in order were dropped,
    /// everything before them is missing without further waiting.
    fn plan_request_repair(&mut self, latest: Psn, with: &mut Answers<'_, '_>) {
        let first = self.confirmed;
        if let Some(repair) = &mut self.request_repair {
            repair.seen(with.now, latest, self.high, with.limits.window.late_after());
        }
        let in_turn = |op: &SendOp| !matches!(op, SendOp::RdmaWrite { .. });
        let dropped = self.plan_missing(first.next(), latest.next(), in_turn, with.limits);
        let before = if dropped { latest } else { request_repair::missing_before(latest) };
        if self.plan_missing(first, before, |_| true, with.limits) {
            with.limits.window.lost(with.now, Duration::ZERO, with.cause);
        }
    }

    /// Schedules packets of `first..end` for retransmission, if `chosen`, unless they have arrived
    /// or were retransmitted already; returns whether there are any. They are not charged to the
    /// window until they are sent.
    fn plan_missing(
        &mut self,
        first: Psn,
        end: Psn,
        chosen: impl Fn(&SendOp) -> bool,
        limits: &mut SharedLimits<'_>,
    ) -> bool {
        let (mut released, mut any) = (0, false);
        let end = if self.next.is_before(end) { self.next } else { end };
        let mut position = self.queue.head();
        let mut from = first;
        while from.is_before(end) {
            let count = end.since(from).min(u64::BITS);
            let unknown =
                self.request_repair.as_ref().map_or(0, |repair| repair.unknown_from(from));
            let mut word = unknown & u64::MAX >> (u64::BITS - count);
            while word != 0 {
                let psn = from.plus(word.trailing_zeros());
                word &= word - 1;
                let Some(at) = self.position_from(position, psn) else { break };
                position = at;
                let entry = *self.queue.get(at);
                let read = self.reads.containing(psn);
                if !chosen(&entry.op) || read.is_some_and(|read| read.first != psn) {
                    continue;
                }
                if entry.carries_payload() {
                    released += self.packet_cost(&entry, psn.since(entry.first));
                }
                if let Some(repair) = &mut self.request_repair {
                    repair.missing(psn);
                }
                any = true;
            }
            from = from.plus(count);
        }
        self.charged -= released;
        limits.window.release(released);
        any
    }

    /// Handles a sequence error NAK: everything from packet `psn` on is retransmitted. Further NAKs
    /// for the same packet within a round trip are ignored as duplicates. If the packet stays
    /// missing, the connection fails like after timeouts.
    fn handle_gap(&mut self, psn: Psn, with: &mut Answers<'_, '_>) -> Result<(), SendFailure> {
        with.counters.sequence_naks_received += 1;
        self.confirm(psn, with);
        if self.confirmed != psn || self.recovery.is_waiting() {
            return Ok(());
        }
        if self.retransmit_timer.is_exhausted(with.now) {
            return Err(SendFailure {
                position: self.position_of(psn),
                status: WorkStatus::RetryExceeded,
            });
        }
        if let Some((gap, when)) = self.reported_gap
            && gap == psn
            && with.now - when < Self::round_trip(with.limits)
        {
            return Ok(());
        }
        self.reported_gap = Some((psn, with.now));
        with.limits.window.lost(with.now, Duration::ZERO, with.cause);
        self.go_back(Cause::Gap, with.limits);
        Ok(())
    }

    /// Handles an RNR NAK for packet `psn`.
    fn handle_not_ready(
        &mut self,
        psn: Psn,
        timer: RnrTimer,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), SendFailure> {
        const NO_LIMIT: u8 = 7;
        with.counters.rnr_naks_received += 1;
        self.confirm(psn, with);
        if self.confirmed != psn || self.recovery.is_waiting() {
            return Ok(());
        }
        if self.rnr_retry_count != NO_LIMIT && self.not_ready_count == self.rnr_retry_count {
            let position = self.position_of(psn);
            return Err(SendFailure { position, status: WorkStatus::RnrRetryExceeded });
        }
        self.not_ready_count = self.not_ready_count.saturating_add(1);
        let probe = self.set_back(Cause::NotReady, with.limits);
        self.retransmit_timer.suspend();
        self.recovery.not_ready(with.now + timer.duration(), probe);
        Ok(())
    }

    /// Handles a NAK by which the peer refuses packet `psn`; the queue pair fails.
    fn handle_refusal(
        &mut self,
        psn: Psn,
        code: NakCode,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), SendFailure> {
        let status = match code {
            NakCode::INVALID_REQUEST => WorkStatus::RemoteInvalidRequest,
            NakCode::REMOTE_ACCESS => WorkStatus::RemoteAccess,
            NakCode::REMOTE_OPERATIONAL => WorkStatus::RemoteOperation,
            _ => WorkStatus::BadResponse,
        };
        self.confirm(psn, with);
        Err(SendFailure { position: self.position_of(psn), status })
    }

    /// The queue position of the request to which the outstanding packet `psn` belongs.
    pub(super) fn position_of(&self, psn: Psn) -> u64 {
        self.position_from(self.queue.head(), psn)
            .expect("every packet that was sent belongs to a request")
    }

    /// The first request, from `position` on, that ends after packet `psn`.
    fn position_from(&self, position: u64, psn: Psn) -> Option<u64> {
        (position..self.started).find(|position| psn.is_before(self.queue.get(*position).end()))
    }

    /// Whether packet `psn`, which was sent, is not charged to the window any longer.
    fn is_released(&self, psn: Psn) -> bool {
        self.request_repair.as_ref().is_some_and(|repair| repair.is_released(psn))
    }

    /// Records that the peer has received a packet; returns false if that was known.
    fn arrived(&mut self, psn: Psn) -> bool {
        self.request_repair.as_mut().is_some_and(|repair| repair.arrived(psn))
    }

    /// The window charge of the packets `confirmed..to`.
    fn cost_before(&self, to: Psn) -> u64 {
        let from = self.confirmed;
        let mut cost = 0;
        for position in self.queue.head()..self.started {
            let entry = self.queue.get(position);
            if !entry.first.is_before(to) {
                break;
            }
            if !entry.carries_payload() {
                continue;
            }
            let end = if to.is_before(entry.end()) { to } else { entry.end() };
            let first = if from.is_before(entry.first) { entry.first } else { from };
            let full = datagram_cost(self.mtu as usize + HEADERS_BYTES);
            if !first.is_before(end) {
                continue;
            }
            let repair = self.request_repair.as_ref();
            let released = repair.map_or(0, |repair| repair.released(first, end));
            cost += u64::from(end.since(first) - released) * full;
            if end == entry.end() && !self.is_released(end.minus(1)) {
                cost = cost - full + self.packet_cost(entry, entry.packets - 1);
            }
        }
        cost
    }
}

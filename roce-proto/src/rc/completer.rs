//! The completer: what acknowledgements and RDMA READ responses do to the requester's marks.

use core::time::Duration;

use crate::rc::completions::Completions;
use crate::rc::congestion::LossCause;
use crate::rc::datagram_cost::HEADERS_BYTES;
use crate::rc::outstanding_reads::Early;
use crate::rc::recovery::{Cause, Probe};
use crate::rc::requester::{Requester, SendFailure};
use crate::rc::{Memory, QueuePairCounters, SharedLimits, WorkStatus, datagram_cost, sge};
use crate::wire::{Aeth, NakCode, RnrTimer, Syndrome};
use crate::{Psn, Time};

/// What answers a queue pair handles with.
pub(super) struct Answers<'a, 'b> {
    pub(super) now: Time,
    pub(super) limits: &'a mut SharedLimits<'b>,
    pub(super) completions: &'a mut Completions,
    pub(super) counters: &'a mut QueuePairCounters,
    /// What packets were lost to that the answer shows to be missing.
    pub(super) cause: LossCause,
}

/// A response is asked for again when one has come that is this much later: less is taken for
/// reordering.
const LATER_RESPONSES: u32 = 4;

impl Requester {
    /// An acknowledgement, positive or negative, for packet `psn`.
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

    /// A packet of an RDMA READ response; it says as well that everything before it was executed.
    /// Its position in the response is not looked at: a responder that repeats a part may begin
    /// with First or with Middle. Length and sequence number say all. It is placed even if others
    /// before it are missing. One whose header refuses the request is a refusal, and no data.
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
        if self.latest.is_none_or(|latest| latest.is_before(psn)) {
            self.latest = Some(psn);
        }
        let ahead = psn.since(self.unacknowledged);
        if ahead >= Early::REACH || !self.early.mark(ahead) {
            with.counters.packets_dropped += 1;
            return Ok(());
        }
        self.place_response(psn, payload, memory)?;
        with.counters.packets_received += 1;
        with.counters.payload_bytes_received += payload.len() as u64;
        self.confirm(psn.next(), with);
        self.settle(with);
        self.plan_repair(with);
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

    /// Asks for the oldest responses again, once, if so much later ones came that they must be
    /// lost.
    fn plan_repair(&mut self, with: &mut Answers<'_, '_>) {
        let first = self.unacknowledged;
        let (Some(latest), Some(read)) = (self.latest, self.reads.containing(first)) else {
            return;
        };
        let lost = first.is_before(latest) && latest.since(first) >= LATER_RESPONSES;
        if lost {
            let missing = self.early.missing().min(read.end.since(first));
            let due = self.read_repair.is_due();
            self.read_repair.found_missing(first, first.plus(missing));
            if !due && self.read_repair.is_due() {
                with.limits.window.responses_lost(with.now, Duration::ZERO);
            }
        }
    }

    /// The peer executed everything before `to`.
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
        self.confirmed = to;
        if !to.is_before(self.next) {
            self.clear_unsolicited(with.limits);
        }
        self.not_ready_count = 0;
        if let Some(probe) = self.recovery.confirmed() {
            self.judge(probe, with);
        }
        if self.next.is_before(to) {
            self.skip_to(to);
        }
        self.settle(with);
        if self.unacknowledged != self.high {
            // What was about to be sent again, and would have started the clock, may have become
            // needless.
            self.start_clock(with.now, with.limits);
        }
    }

    /// Moves `unacknowledged` on, to the first response that is missing or else to `confirmed`, and
    /// completes what is done.
    fn settle(&mut self, with: &mut Answers<'_, '_>) {
        let before = self.unacknowledged;
        loop {
            match self.reads.first_missing(self.unacknowledged) {
                Some(psn) if psn.is_before(self.confirmed) => {
                    self.pass_to(psn);
                    if !self.early.has_oldest() {
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
            self.latest = self.latest.filter(|latest| self.unacknowledged.is_before(*latest));
            self.retire(with.completions);
            let more = self.unacknowledged != self.high;
            let next = more.then(|| self.retransmit_after(with.limits));
            self.retransmit_timer.answered(with.now, next);
        }
    }

    fn pass_to(&mut self, psn: Psn) {
        self.early.pass(psn.since(self.unacknowledged));
        self.unacknowledged = psn;
    }

    /// Passes the oldest response, which has come.
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

    /// An answer came after going back. If silence was the cause and the answer covers more than
    /// the probe, then the peer has what was sent before and was merely slow: there is no need to
    /// send it again. A READ gives no such hint, and repeating it is expensive: what was lost
    /// behind it will show. An answer to what was merely not asked before says nothing against the
    /// peer if it covers everything.
    fn judge(&mut self, probe: Probe, with: &mut Answers<'_, '_>) {
        let unsolicited = match probe.cause {
            Cause::Silence => false,
            Cause::AckNotRequested => true,
            Cause::Gap | Cause::NotReady => return,
        };
        let sent_probe = self.next != probe.psn;
        let covers_more = self.confirmed.since(probe.psn) > 1;
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

    /// The peer misses packet `psn`: everything from there on is sent again. Further reports of the
    /// same gap that come within a round trip are echoes of the first. A gap that cannot be filled
    /// ends the connection as silence does.
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

    /// The peer has no receive for packet `psn`.
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

    /// The peer refuses packet `psn` for good.
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

    /// The request that packet `psn`, which was sent and is not done, belongs to.
    pub(super) fn position_of(&self, psn: Psn) -> u64 {
        (self.queue.head()..self.started)
            .find(|position| psn.is_before(self.queue.get(*position).end()))
            .expect("every packet that was sent belongs to a request")
    }

    /// What the packets `confirmed..to` cost the window.
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
            let packets = if first.is_before(end) { end.since(first) } else { 0 };
            cost += u64::from(packets) * full;
            if packets > 0 && end == entry.end() {
                let last = self.packet_bytes(entry, entry.packets - 1);
                cost = cost - full + datagram_cost(last as usize + HEADERS_BYTES);
            }
        }
        cost
    }
}

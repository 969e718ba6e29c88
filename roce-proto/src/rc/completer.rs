//! The completer: what acknowledgements and RDMA READ responses do to the requester's marks.

use crate::rc::completions::Completions;
use crate::rc::requester::{Cause, Failure, Probe, Requester};
use crate::rc::window::HEADERS_BYTES;
use crate::rc::{Counters, Limits, Memory, SendOp, Status, datagram_cost, sge};
use crate::wire::{Aeth, NakCode, RnrTimer, Syndrome};
use crate::{Psn, Time};

/// What answers a queue pair handles with.
pub(super) struct Answers<'a, 'b> {
    pub(super) now: Time,
    pub(super) limits: &'a mut Limits<'b>,
    pub(super) completions: &'a mut Completions,
    pub(super) counters: &'a mut Counters,
}

impl Requester {
    /// An acknowledgement, positive or negative, for packet `psn`.
    pub(super) fn handle_acknowledge(
        &mut self,
        psn: Psn,
        aeth: &Aeth,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), Failure> {
        if !psn.is_within(self.unacknowledged, self.high) {
            with.counters.packets_dropped += 1;
            return Ok(());
        }
        with.counters.packets_received += 1;
        match aeth.syndrome {
            Syndrome::Ack { .. } => self.acknowledge(psn.next(), with),
            Syndrome::Nak(NakCode::PSN_SEQUENCE) => self.handle_gap(psn, with),
            Syndrome::RnrNak(timer) => return self.handle_not_ready(psn, timer, with),
            Syndrome::Nak(code) => return self.handle_refusal(psn, code, with),
            Syndrome::Reserved(_) => {}
        }
        Ok(())
    }

    /// A packet of an RDMA READ response. Its position in the response is not looked at: a responder that
    /// repeats a part may begin with First or with Middle. Length and sequence number say all.
    pub(super) fn handle_response(
        &mut self,
        psn: Psn,
        payload: &[u8],
        memory: &mut impl Memory,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), Failure> {
        let expected = self.reads.first_missing(self.unacknowledged);
        match expected {
            Some(expected) if psn == expected => self.take_response(psn, payload, memory, with),
            Some(expected) if expected.is_before(psn) && psn.is_before(self.high) => {
                with.counters.packets_dropped += 1;
                self.acknowledge(psn, with);
                Ok(())
            }
            _ => {
                with.counters.packets_dropped += 1;
                Ok(())
            }
        }
    }

    /// The response that is due: it acknowledges everything before it as well.
    fn take_response(
        &mut self,
        psn: Psn,
        payload: &[u8],
        memory: &mut impl Memory,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), Failure> {
        let position = self.position_of(psn);
        let entry = self.queue.get(position);
        let index = psn.since(entry.first);
        if payload.len() != self.packet_bytes(entry, index) as usize {
            return Err(Failure { position, status: Status::BadResponse });
        }
        sge::scatter(memory, self.queue.sges(position), index * self.mtu, payload)
            .map_err(|_| Failure { position, status: Status::LocalProtection })?;
        with.counters.packets_received += 1;
        with.counters.payload_bytes_received += payload.len() as u64;
        if let Some(read) = self.reads.front().copied() {
            with.limits.reads.release(1, read.packet_bytes);
            if read.end == psn.next() {
                self.reads.pop();
            }
        }
        self.advance(psn.next(), with);
        Ok(())
    }

    /// Everything before `to` was received by the peer. Where that includes READ responses that have not come,
    /// they are asked for again, once.
    fn acknowledge(&mut self, to: Psn, with: &mut Answers<'_, '_>) {
        match self.reads.first_missing(self.unacknowledged) {
            Some(missing) if missing.is_before(to) => {
                self.advance(missing, with);
                if self.repeated_from != Some(missing) {
                    self.go_back(Cause::Gap, with.limits);
                    self.repeated_from = Some(missing);
                }
            }
            _ => self.advance(to, with),
        }
    }

    /// Everything before `to` is done.
    fn advance(&mut self, to: Psn, with: &mut Answers<'_, '_>) {
        if !self.unacknowledged.is_before(to) {
            return;
        }
        let released = if to.is_before(self.next) { self.cost_before(to) } else { self.charged };
        with.limits.window.acknowledged(with.now, released);
        self.charged -= released;
        self.release_stale(with.limits);
        self.unacknowledged = to;
        self.not_ready_count = 0;
        if let Some((_, sent)) = self.timed.filter(|(psn, _)| psn.is_before(to)) {
            with.limits.window.sample(with.now - sent);
            self.timed = None;
        }
        if let Some(probe) = self.probe.take() {
            self.judge(probe, with);
        }
        if self.next.is_before(to) {
            self.skip_to(to);
        }
        self.retire(with.completions);
        let more = self.unacknowledged != self.high;
        self.patience.answered(with.now, more, with.limits.window.retransmit_after());
    }

    /// An answer came after going back. If silence was the cause and the answer covers more than the probe, then
    /// the peer has what was sent before and was merely slow: there is no need to send it again. A READ gives no
    /// such hint, and repeating it is expensive: what was lost behind it will show.
    fn judge(&mut self, probe: Probe, with: &mut Answers<'_, '_>) {
        if probe.cause != Cause::Silence {
            return;
        }
        let sent_probe = self.next != probe.psn;
        let covers_more = self.unacknowledged.since(probe.psn) > 1;
        let read = matches!(self.queue.get(self.queue.head()).op, SendOp::RdmaRead { .. });
        if covers_more || read || !sent_probe {
            with.counters.spurious_timeouts += 1;
            self.skip_to(self.high);
            let outstanding = self.cost_before(self.high);
            with.limits.window.charge(outstanding - self.charged);
            self.charged = outstanding;
        } else {
            with.limits.window.lost(with.now);
        }
    }

    /// The peer misses packet `psn`: everything from there on is sent again. Further reports of the same gap
    /// that come within a round trip are echoes of the first.
    fn handle_gap(&mut self, psn: Psn, with: &mut Answers<'_, '_>) {
        with.counters.sequence_naks_received += 1;
        self.acknowledge(psn, with);
        if self.unacknowledged != psn || self.not_ready_until.is_some() {
            return;
        }
        if let Some((gap, when)) = self.went_back
            && gap == psn
            && with.now - when < Self::round_trip(with.limits)
        {
            return;
        }
        self.went_back = Some((psn, with.now));
        with.limits.window.lost(with.now);
        self.go_back(Cause::Gap, with.limits);
    }

    /// The peer has no receive for packet `psn`.
    fn handle_not_ready(
        &mut self,
        psn: Psn,
        timer: RnrTimer,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), Failure> {
        const NO_LIMIT: u8 = 7;
        with.counters.rnr_naks_received += 1;
        self.acknowledge(psn, with);
        if self.unacknowledged != psn || self.not_ready_until.is_some() {
            return Ok(());
        }
        if self.rnr_retry_count != NO_LIMIT && self.not_ready_count == self.rnr_retry_count {
            let position = self.queue.head();
            return Err(Failure { position, status: Status::RnrRetryExceeded });
        }
        self.not_ready_count = self.not_ready_count.saturating_add(1);
        self.go_back(Cause::NotReady, with.limits);
        self.patience.suspend();
        self.not_ready_until = Some(with.now + timer.duration());
        Ok(())
    }

    /// The peer refuses packet `psn` for good.
    fn handle_refusal(
        &mut self,
        psn: Psn,
        code: NakCode,
        with: &mut Answers<'_, '_>,
    ) -> Result<(), Failure> {
        let status = match code {
            NakCode::INVALID_REQUEST => Status::RemoteInvalidRequest,
            NakCode::REMOTE_ACCESS => Status::RemoteAccess,
            NakCode::REMOTE_OPERATIONAL => Status::RemoteOperation,
            _ => Status::BadResponse,
        };
        self.acknowledge(psn, with);
        Err(Failure { position: self.position_of(psn), status })
    }

    /// The request that packet `psn`, which was sent and is not done, belongs to.
    fn position_of(&self, psn: Psn) -> u64 {
        (self.queue.head()..self.started)
            .find(|position| psn.is_before(self.queue.get(*position).end()))
            .expect("every packet that was sent belongs to a request")
    }

    /// What the packets `unacknowledged..to` cost the window.
    fn cost_before(&self, to: Psn) -> u64 {
        let from = self.unacknowledged;
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

//! The end of a command: its data and its response go to the host.
//!
//! What a turn answers is sent at its end, data first and then the responses: requests of one kind and length follow each
//! other, which a provider in software sends as one train.
#![expect(unsafe_code, reason = "lends buffers to the device")]

use std::mem;

use ::rdma::{Op, Provider, SendFlags, SendWr, Sge};

use super::{Connection, Desk, Ended};
use crate::controller::{IoKind, IoWork, Outcome, Work};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::ANSWERED_AT_ONCE_BYTES;
use crate::request::{HostData, Slot, State};
use crate::transport::rdma::work_id::WorkKind;

impl<P: Provider> Connection<P> {
    /// Answers a command at the end of the turn, or when the send queue has room.
    pub(super) fn respond(
        &mut self,
        desk: &mut Desk<'_, P>,
        slot: Slot,
        outcome: Outcome,
    ) -> Result<(), Ended> {
        let request = self.slots.get(slot);
        request.outcome = outcome;
        request.state = State::AwaitingResponse;
        request.send_entries = if request.sends_data() { 2 } else { 1 };
        request.send_entries += u32::from(deliberate_bugs::has(Bug::CompleteTwice));
        self.to_respond.push(slot);
        self.announce_responses(desk);
        Ok(())
    }

    /// Has [`Connection::send_responses`] called at the end of the turn.
    fn announce_responses(&mut self, desk: &mut Desk<'_, P>) {
        desk.answers |= !mem::replace(&mut self.announced, true);
    }

    /// The turn ends: answers all commands that the send queue has room for.
    pub(crate) fn send_responses(&mut self, desk: &mut Desk<'_, P>) -> Result<(), Ended> {
        self.announced = false;
        loop {
            let count = self.send_all_data(desk)?;
            if count == 0 {
                return Ok(());
            }
            for index in 0..count {
                self.send_response(desk, self.to_respond[index])?;
            }
            self.to_respond.drain(..count);
        }
    }

    /// Sends the data of the first commands in line; not of too many, so that the host need not wait long for the first
    /// response. Returns how many.
    fn send_all_data(&mut self, desk: &mut Desk<'_, P>) -> Result<usize, Ended> {
        let (mut count, mut bytes, mut responses) = (0, 0, 0);
        while bytes < ANSWERED_AT_ONCE_BYTES
            && let Some(&slot) = self.to_respond.get(count)
        {
            let request = self.slots.get(slot);
            if responses + request.send_entries > self.send_entries_left {
                break;
            }
            let (receive, sends_data) = (request.receive, request.sends_data());
            responses += request.send_entries - u32::from(sends_data);
            count += 1;
            // First, since the host may send its next command as soon as it has the response.
            self.post_receive(desk, receive)?;
            if sends_data {
                bytes += self.send_data(desk, slot)?;
            }
        }
        Ok(count)
    }

    fn send_response(&mut self, desk: &mut Desk<'_, P>, slot: Slot) -> Result<(), Ended> {
        let request = self.slots.get(slot);
        let (cid, outcome, invalidate) = (request.cid, request.outcome, request.invalidate);
        if deliberate_bugs::has(Bug::ReuseBufferEarly) {
            let buffer = self.slots.get(slot).buffer.take();
            self.release(desk, buffer);
        }
        let response = self.queue().completion(cid, outcome);
        let sge = self.area.set_response(slot, &response);
        let op = invalidate.map_or(Op::Send, |rkey| Op::SendWithInvalidate { rkey });
        let wr = SendWr {
            wr_id: self.work_id(WorkKind::Response, slot.0),
            op,
            flags: SendFlags::SIGNALED,
            sges: &[sge],
        };
        self.slots.answer(slot);
        if deliberate_bugs::has(Bug::CompleteTwice) {
            let wr_id = self.work_id(WorkKind::Data, slot.0);
            let twin = SendWr { wr_id, flags: SendFlags::NONE, ..wr };
            // SAFETY: as below, before which it is done.
            unsafe { self.push_send(desk, &twin) }?;
        }
        // SAFETY: the area lives until the queue pair is released, and the slot is taken until this completes.
        unsafe { self.push_send(desk, &wr) }
    }

    /// Data to the host. The response follows it in the same queue, so it arrives first; only the response
    /// is reported. Returns how many bytes.
    fn send_data(&mut self, desk: &mut Desk<'_, P>, slot: Slot) -> Result<u32, Ended> {
        let request = self.slots.get(slot);
        let HostData::Keyed { address, key } = request.host else {
            unreachable!("data for the host goes to a key")
        };
        let pool = desk.core.buffers().pool();
        let addr = match (&request.buffer, request.work) {
            (Some(buffer), _) => pool.address(buffer) as u64,
            (None, Some(Work::Io(IoWork { kind: IoKind::ReadZeros, .. }))) => {
                pool.memory().zeros(request.length) as u64
            }
            (None, _) => unreachable!("data for the host is in a buffer, unless it is zeros"),
        };
        let sge = Sge { addr, length: request.length, lkey: desk.plan.pool_key };
        let wr = SendWr {
            wr_id: self.work_id(WorkKind::Data, slot.0),
            op: Op::RdmaWrite { remote_addr: address, rkey: key },
            flags: SendFlags::NONE,
            sges: &[sge],
        };
        // SAFETY: the buffer stays with its request until the response completes, which is after this; zeros stay zeros.
        unsafe { self.push_send(desk, &wr) }?;
        Ok(sge.length)
    }

    /// A response was sent: its request is over.
    pub(super) fn responded(&mut self, desk: &mut Desk<'_, P>, slot: u32) -> Result<(), Ended> {
        let remains = self.slots.end(Slot(slot));
        self.moved(desk, remains.send_entries);
        self.release(desk, remains.buffer);
        self.pump(desk)
    }

    /// Goes on with what waited for room.
    pub(super) fn pump(&mut self, desk: &mut Desk<'_, P>) -> Result<(), Ended> {
        if !self.to_respond.is_empty() {
            self.announce_responses(desk);
        }
        if !self.to_fetch.is_empty() {
            self.fetch(desk)?;
        }
        if !self.arrived.is_empty() {
            self.admit(desk)?;
        }
        if self.leaving && self.owes_nothing() {
            return Err(Ended::Goodbye);
        }
        Ok(())
    }
}

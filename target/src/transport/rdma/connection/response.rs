//! End of a command: sends its data and its response to the host.
//!
//! The responses of a turn are sent at its end, in batches: the data of several commands, then
//! their responses. These are consecutive work requests of one kind and length, which a provider
//! with trains sends at a lower cost.
#![expect(unsafe_code, reason = "lends buffers to the device")]

use std::mem;

use ::rdma::{Op, Provider, SendFlags, SendWr, Sge};

use super::{Connection, Ended, TurnContext};
use crate::controller::{CommandOutcome, CommandWork, IoKind, IoWork};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::{DATA_BEFORE_RESPONSES_BYTES, DATA_BEFORE_RESPONSES_MAX_BYTES};
use crate::transport::rdma::connection::request::{HostData, RequestState, SlotId};
use crate::transport::rdma::work_id::WorkKind;

/// Limit of the data that is sent before the first of its responses. More data makes longer trains,
/// but a host continues only when a response arrives.
#[derive(Clone, Copy, Debug)]
struct DataBatchLimit {
    /// Number of commands below which the batch may exceed [`DATA_BEFORE_RESPONSES_BYTES`].
    commands: usize,
}

impl DataBatchLimit {
    /// Limit while storage has work, so that hosts send more commands soon. Also for a device
    /// without trains, to which longer batches bring nothing.
    const NONE: Self = Self { commands: 0 };

    /// Limit while storage is idle: the host processes the first half of the responses while the
    /// second half is sent.
    const fn for_responses(to_respond: usize) -> Self {
        Self { commands: to_respond.div_ceil(2) }
    }

    /// Whether the data of one more command is sent first, after that of `commands` commands with
    /// `bytes` bytes.
    const fn goes_on(self, commands: usize, bytes: u32) -> bool {
        bytes < DATA_BEFORE_RESPONSES_BYTES
            || (commands < self.commands && bytes < DATA_BEFORE_RESPONSES_MAX_BYTES)
    }
}

impl<P: Provider> Connection<P> {
    /// Schedules a response for the end of the turn, or for when the send queue has room.
    pub(super) fn respond(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        outcome: CommandOutcome,
    ) -> Result<(), Ended> {
        let request = self.slots.get(slot);
        request.outcome = outcome;
        request.state = RequestState::AwaitingResponse;
        request.holds.clear();
        request.send_entries = if request.sends_data() { 2 } else { 1 };
        request.send_entries += u32::from(deliberate_bugs::has(Bug::CompleteTwice));
        self.to_respond.push(slot);
        self.schedule_responses(context);
        Ok(())
    }

    /// Schedules [`Connection::send_responses`] for the end of the turn.
    fn schedule_responses(&mut self, context: &mut TurnContext<'_, P>) {
        context.answers |= !mem::replace(&mut self.responses_scheduled, true);
    }

    /// Sends, at the end of the turn, the responses (and data) for which the send queue has room.
    pub(crate) fn send_responses(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        self.responses_scheduled = false;
        let storage_is_idle = context.core.storage().in_flight() == 0;
        let run = if storage_is_idle && context.config.trains {
            DataBatchLimit::for_responses(self.to_respond.len())
        } else {
            DataBatchLimit::NONE
        };
        loop {
            let count = self.send_all_data(context, run)?;
            if count == 0 {
                return Ok(());
            }
            for index in 0..count {
                self.send_response(context, self.to_respond[index])?;
            }
            self.to_respond.drain(..count);
        }
    }

    /// Sends the data of the first commands in `to_respond`. Returns the number of commands.
    fn send_all_data(
        &mut self,
        context: &mut TurnContext<'_, P>,
        run: DataBatchLimit,
    ) -> Result<usize, Ended> {
        let (mut count, mut bytes, mut responses) = (0, 0, 0);
        while run.goes_on(count, bytes)
            && let Some(&slot) = self.to_respond.get(count)
        {
            let request = self.slots.get(slot);
            if responses + request.send_entries > self.send_entries_left {
                break;
            }
            let (receive, sends_data) = (request.receive, request.sends_data());
            responses += request.send_entries - u32::from(sends_data);
            count += 1;
            // Posted first, since the host may send its next command as soon as it has the
            // response.
            self.post_receive(context, receive)?;
            if sends_data {
                bytes += self.send_data(context, slot)?;
            }
        }
        Ok(count)
    }

    fn send_response(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
    ) -> Result<(), Ended> {
        let request = self.slots.get(slot);
        let (cid, outcome, invalidate) = (request.cid, request.outcome, request.invalidate);
        if deliberate_bugs::has(Bug::ReuseBufferEarly) {
            let buffer = self.slots.get(slot).buffer.take();
            self.release(context, buffer);
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
            // SAFETY: as below; this one completes earlier.
            unsafe { self.push_send(context, &twin) }?;
        }
        // SAFETY: the area lives until the queue pair is released, and the slot is taken until this
        // completes.
        unsafe { self.push_send(context, &wr) }
    }

    /// Posts the RDMA WRITE of a command's data and returns its length in bytes. It is unsignaled:
    /// the response follows in the same send queue, so the data arrives before it.
    fn send_data(&mut self, context: &mut TurnContext<'_, P>, slot: SlotId) -> Result<u32, Ended> {
        let request = self.slots.get(slot);
        let HostData::Keyed { address, key } = request.host else {
            unreachable!("data for the host goes to a key")
        };
        let pool = context.core.buffers().pool();
        let addr = match (&request.buffer, request.work) {
            (Some(buffer), _) => pool.address(buffer) as u64,
            (None, Some(CommandWork::Io(IoWork { kind: IoKind::ReadZeros, .. }))) => {
                pool.memory().zeros(request.length) as u64
            }
            (None, _) => unreachable!("data for the host is in a buffer, unless it is zeros"),
        };
        let sge = Sge { addr, length: request.length, lkey: context.config.pool_key };
        let wr = SendWr {
            wr_id: self.work_id(WorkKind::Data, slot.0),
            op: Op::RdmaWrite { remote_addr: address, rkey: key },
            flags: SendFlags::NONE,
            sges: &[sge],
        };
        // SAFETY: the buffer stays with its request until the response completes, which is after
        // this; zeros stay zeros.
        unsafe { self.push_send(context, &wr) }?;
        Ok(sge.length)
    }

    /// Ends a request whose response the host has acknowledged.
    pub(super) fn responded(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: u32,
    ) -> Result<(), Ended> {
        let request = self.slots.get(SlotId(slot));
        let bytes = if request.sends_data() { request.length } else { 0 };
        let resources = self.slots.end(SlotId(slot));
        self.moved(context, resources.send_entries, bytes);
        self.release(context, resources.buffer);
        self.pump(context)
    }

    /// Continues requests and capsules that waited for send queue entries or slots.
    pub(super) fn pump(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        if !self.to_respond.is_empty() {
            self.schedule_responses(context);
        }
        if !self.to_fetch.is_empty() {
            self.fetch(context)?;
        }
        if !self.arrived.is_empty() {
            self.admit(context)?;
        }
        self.leave(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of commands, of `count` with the same length, that are answered together.
    fn together(run: DataBatchLimit, count: usize, length: u32) -> usize {
        let bytes = |commands: usize| u32::try_from(commands).unwrap() * length;
        (0..count).find(|&sent| !run.goes_on(sent, bytes(sent))).unwrap_or(count)
    }

    #[test]
    fn data_batches_are_half_of_the_answers_within_bounds() {
        for (count, length, expected) in [
            (1, 1 << 20, 1),
            (4, 4 << 10, 4),
            (32, 4 << 10, 32),
            (64, 4 << 10, 32),
            (512, 4 << 10, 128),
            (8, 64 << 10, 4),
            (32, 64 << 10, 8),
            (8, 128 << 10, 4),
            (32, 128 << 10, 4),
            (8, 1 << 20, 1),
        ] {
            assert_eq!(
                together(DataBatchLimit::for_responses(count), count, length),
                expected,
                "{count} of {length}"
            );
        }
    }

    #[test]
    fn a_short_run_is_of_128_kib() {
        for (count, length, expected) in [(1, 1 << 20, 1), (512, 4 << 10, 32), (32, 64 << 10, 2)] {
            assert_eq!(
                together(DataBatchLimit::NONE, count, length),
                expected,
                "{count} of {length}"
            );
        }
    }
}

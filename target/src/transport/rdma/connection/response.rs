//! End of a command: sends its data and its response to the host.
//!
//! The responses of a turn are sent at its end, in batches: the data of several commands, then
//! their responses. These are consecutive work requests of one kind and length, which a provider
//! with trains sends at a lower cost.
#![expect(unsafe_code, reason = "lends buffers to the device")]

use std::mem;

use ::rdma::{Op, Provider, SendFlags, SendWr, Sge};
use nvme_proto::Status;

use super::data::{KeyedMemory, OutgoingData, ResponseData, StorageStep};
use super::request::{CompletionPermit, RequestStage, ResponseContent};
use super::{Connection, Ended, Leaving, TurnContext, WorkKind};
use crate::controller::{CommandOutcome, CommandWork, IoWork};
use crate::core_context::SlotId;
use crate::core_context::pool::{Buffer, Pool};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::turn::{DATA_BEFORE_RESPONSES_BYTES, DATA_BEFORE_RESPONSES_MAX_BYTES};

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
    /// Completes a command: schedules its response for the end of the turn, or for when the send
    /// queue has room.
    pub(super) fn complete(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        outcome: CommandOutcome,
        data: ResponseData,
    ) {
        self.respond(context, permit, outcome, data);
    }

    /// Completes a command as [`Connection::complete`] does, inlined on the way of a read.
    #[inline(always)]
    pub(super) fn respond(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        outcome: CommandOutcome,
        data: ResponseData,
    ) {
        self.to_respond.push(self.slots.complete(permit, outcome, data));
        self.schedule_responses(context);
    }

    /// Completes an I/O command that failed, but not because of its medium.
    #[cold]
    pub(super) fn fail_step(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        status: Status,
        step: StorageStep,
    ) {
        self.ended(context.core, &permit, work, step.ranges_passed(), false);
        let outcome = self.queue.io_failed(permit.cid(), work, status);
        self.complete(context, permit, outcome, ResponseData::None(step.into_buffer()));
    }

    /// Completes an I/O command that was not executed.
    #[cold]
    pub(super) fn fail(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        status: Status,
        buffer: Option<Buffer>,
    ) {
        self.ended(context.core, &permit, work, 0, false);
        let outcome = self.queue.io_failed(permit.cid(), work, status);
        self.complete(context, permit, outcome, ResponseData::None(buffer));
    }

    /// Responds with an error to a command that was not executed.
    pub(super) fn refuse(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &CommandWork,
        status: Status,
        buffer: Option<Buffer>,
    ) {
        match work {
            CommandWork::Io(work) => self.fail(context, permit, work, status, buffer),
            CommandWork::Control(_) => {
                self.complete(context, permit, status.into(), ResponseData::None(buffer));
            }
        }
    }

    /// Schedules [`Connection::send_responses`] for the end of the turn.
    fn schedule_responses(&mut self, context: &mut TurnContext<'_, P>) {
        context.answers |= !mem::replace(&mut self.responses_scheduled, true);
    }

    /// Sends, at the end of the turn, the responses (and data) for which the send queue has room.
    pub(in crate::transport::rdma) fn send_responses(
        &mut self,
        context: &mut TurnContext<'_, P>,
    ) -> Result<(), Ended> {
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
            let receive = request.receive;
            let Some(due) = request.due_response() else { break };
            let pool = context.core.buffers().pool();
            let (data, send_entries) = (place_of(pool, &due.data), due.send_entries());
            if responses + send_entries > self.send_entries_left {
                break;
            }
            responses += send_entries - u32::from(data.is_some());
            count += 1;
            // Posted first, since the host may send its next command as soon as it has the
            // response.
            self.post_receive(context, receive)?;
            if let Some((address, to)) = data {
                bytes += to.length;
                self.send_data(context, slot, address, to)?;
            }
        }
        Ok(count)
    }

    #[inline]
    fn send_response(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
    ) -> Result<(), Ended> {
        let Some(ResponseContent { cid, outcome, invalidate }) = self.slots.send(slot) else {
            return Ok(());
        };
        if deliberate_bugs::has(Bug::ReuseBufferEarly)
            && let RequestStage::Responding(sent) = &mut self.slots.get(slot).stage
        {
            let buffer = sent.buffer.take();
            self.release(context, buffer);
        }
        let response = self.queue.completion(cid, outcome);
        let sge = self.area.set_response(slot, &response);
        let op = invalidate.map_or(Op::Send, |rkey| Op::SendWithInvalidate { rkey });
        let wr = SendWr {
            wr_id: self.work_id(WorkKind::Response, slot.0),
            op,
            flags: SendFlags::SIGNALED,
            sges: &[sge],
        };
        if deliberate_bugs::has(Bug::CompleteTwice) {
            let wr_id = self.work_id(WorkKind::Data, slot.0);
            let twin = SendWr { wr_id, flags: SendFlags::NONE, ..wr };
            // SAFETY: as below; this one completes earlier.
            unsafe { self.push_send(context, &twin, 0) }?;
        }
        // SAFETY: the area lives until the queue pair is released, and the slot is taken until this
        // completes.
        unsafe { self.push_send(context, &wr, 0) }
    }

    /// Posts the RDMA WRITE of a command's data. It is unsignaled: the response follows in the same
    /// send queue, so the data arrives before it.
    #[inline]
    fn send_data(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        address: *const u8,
        to: KeyedMemory,
    ) -> Result<(), Ended> {
        let lkey = context.config.pool_key;
        let sge = Sge { addr: address as u64, length: to.length, lkey };
        let wr = SendWr {
            wr_id: self.work_id(WorkKind::Data, slot.0),
            op: Op::RdmaWrite { remote_addr: to.address, rkey: to.key },
            flags: SendFlags::NONE,
            sges: &[sge],
        };
        // SAFETY: the buffer stays with its request until the response completes, which is after
        // this; zeros stay zeros.
        unsafe { self.push_send(context, &wr, to.length) }
    }

    /// Ends a request whose response the host has acknowledged.
    pub(super) fn responded(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: u32,
    ) -> Result<(), Ended> {
        let sent = self.slots.end(SlotId(slot)).ok_or(Ended::UnknownWork(WorkKind::Response))?;
        self.moved(context, sent.send_entries, sent.bytes);
        self.release(context, sent.buffer);
        self.pump(context)
    }

    /// Gives the buffer of a request, if it has one, back to its pool.
    pub(super) fn release(&mut self, context: &mut TurnContext<'_, P>, buffer: Option<Buffer>) {
        if let Some(buffer) = buffer {
            context.core.buffers().release(&self.accounts, buffer);
        }
    }

    /// Continues requests and capsules that waited for send queue entries or slots.
    #[inline(always)]
    pub(super) fn pump(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        if !self.to_respond.is_empty() {
            self.schedule_responses(context);
        }
        let rests = self.to_fetch.is_empty()
            && self.arrived.is_empty()
            && matches!(self.leaving, Leaving::No);
        if rests { Ok(()) } else { self.continue_waiting(context) }
    }

    fn continue_waiting(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        if !self.to_fetch.is_empty() {
            self.fetch(context)?;
        }
        if !self.arrived.is_empty() {
            self.admit(context)?;
        }
        self.leave(context)
    }
}

/// Where the data of a response is, here and at the host; `None` without data.
fn place_of(pool: &Pool, data: &ResponseData) -> Option<(*const u8, KeyedMemory)> {
    let (address, to) = match data {
        ResponseData::Buffer(OutgoingData { buffer, to }) => {
            (pool.address(buffer).cast_const(), to)
        }
        ResponseData::Zeros(to) => (pool.memory().zeros(to.length), to),
        ResponseData::None(_) => return None,
    };
    (to.length > 0).then_some((address, *to))
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

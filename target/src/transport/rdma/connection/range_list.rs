//! Read Ranges: one command that reads several ranges, as far as that waits for nothing.
#![expect(unsafe_code, reason = "lends buffers and memory of the device to storage")]

use ::rdma::{Group, Provider};
use nvme_proto::Status;
use nvme_proto::nvm::{ListedRange, ReadRanges};

use super::data::{HostData, KeyedMemory, OutgoingData, ResponseData, StorageStep};
use super::list_progress::ListProgress;
use super::request::{CompletionPermit, Receive, RequestStage, StorageRun};
use super::{Connection, Ended, TurnContext};
use crate::backend::{BackendError, Operation, Span};
use crate::controller::command_trace::TracePoint;
use crate::controller::{CommandOutcome, CommandWork, IoKind, IoWork};
use crate::core_context::CoreContext;
use crate::deliberate_bugs::{self, Bug};
use crate::storage::Submitted;
use crate::transport::rdma::area::Area;

impl<P: Provider> Connection<P> {
    /// Executes Read Ranges: checks its list, and reads into memory of the device, or else into a
    /// buffer, for which the command may have to wait.
    pub(super) fn read_list(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        to: KeyedMemory,
    ) -> Result<(), Ended> {
        let receive = self.slots.get(permit.slot()).receive;
        let list = match list_of(&mut self.area, receive, work) {
            Ok(list) => list,
            Err(status) => {
                self.fail(context, permit, work, status, None);
                return Ok(());
            }
        };
        let is_ready = context.core.storage().may_read_now()
            && context.group.has_write_room(self.qp, to.length);
        if !is_ready {
            let host = HostData::Returned(to);
            return self.allocate(context, permit, &CommandWork::Io(*work), host, to.length);
        }
        let (mut progress, mut sent) = (ListProgress::default(), 0);
        while sent < to.length
            && let Some(room) = context.group.write_room(self.qp, to.length - sent)
        {
            let (memory, length) = (room.address().as_ptr(), room.length());
            // SAFETY: the room is mapped until the next call of the group, which is below. The peer
            // shares it and is never trusted to leave it alone; it is only written here.
            let filled = unsafe { fill(context.core, work, list, &mut progress, memory, length) };
            let address = to.address.wrapping_add(sent.into());
            // The rest of the room holds earlier data of this host.
            let is_sent = filled > 0 && context.group.send_room(self.qp, room, address, to.key);
            if !is_sent || filled < length {
                break;
            }
            sent += length;
        }
        match progress.bytes == to.length {
            true => self.placing.placed(to.length),
            false => self.placing.missed(),
        }
        let times = &mut self.slots.get(permit.slot()).times;
        times.reach(TracePoint::Buffered, context.core.now);
        times.reach(TracePoint::Executing, context.core.now);
        self.list_is_read(context, permit, work, progress, ResponseData::None(None));
        Ok(())
    }

    /// Reads the next ranges of a list into the buffer of the command. Once the turn has read
    /// enough, the next range waits as an operation, as a read does.
    pub(super) fn advance_list(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        data: OutgoingData,
        mut progress: ListProgress,
    ) {
        let slot = permit.slot();
        let whose = self.request_key(context, slot);
        let receive = self.slots.get(slot).receive;
        let list = match list_of(&mut self.area, receive, work) {
            Ok(list) => list,
            Err(status) => return self.fail(context, permit, work, status, Some(data.buffer)),
        };
        while let Some(range) = progress.next(list) {
            let length = range.length_bytes.get();
            let pool = context.core.buffers().pool();
            // SAFETY: the buffer stays with its request, and no device uses it, until the operation
            // ends: the response comes after that, and an ending connection waits for it.
            let span = unsafe { pool.span(&data.buffer, progress.bytes, length) };
            let operation = Operation::read(range.offset_bytes.get(), span);
            let is_read = if context.core.storage().may_read_now() {
                context.core.read_now(work.namespace, operation)
            } else {
                match context.core.submit(whose, work.namespace, operation) {
                    Submitted::UnderWay(operation) => {
                        self.operations += 1;
                        let step = StorageStep::ReadRanges(data, progress);
                        let run = StorageRun { permit, work: *work, step, operation, abort: None };
                        self.slots.get(slot).stage = RequestStage::Executing(run);
                        return;
                    }
                    Submitted::Over(result) => result.is_ok(),
                }
            };
            if !is_read {
                break;
            }
            progress.add(range, length);
        }
        let data = match progress.bytes {
            0 => ResponseData::None(Some(data.buffer)),
            length => {
                let to = KeyedMemory { length, ..data.to };
                ResponseData::Buffer(OutgoingData { to, ..data })
            }
        };
        self.list_is_read(context, permit, work, progress, data);
    }

    /// Continues a list after the operation of its next range.
    pub(super) fn range_is_read(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        (data, mut progress): (OutgoingData, ListProgress),
        result: Result<(), BackendError>,
    ) {
        let receive = self.slots.get(permit.slot()).receive;
        if let (Ok(()), Ok(list)) = (result, list_of(&mut self.area, receive, work))
            && let Some(range) = progress.next(list)
        {
            progress.add(range, range.length_bytes.get());
            return self.advance_list(context, permit, work, data, progress);
        }
        let data = ResponseData::None(Some(data.buffer));
        self.list_is_read(context, permit, work, ListProgress::default(), data);
    }

    /// Completes Read Ranges with the number of ranges that were read, which are counted.
    fn list_is_read(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        ListProgress { ranges, bytes, .. }: ListProgress,
        data: ResponseData,
    ) {
        let kind = IoKind::ReadRanges { ranges };
        let read = IoWork { kind, length_bytes: bytes.into(), ..*work };
        let outcome = self.end_io(context.core, &permit, &read, 0, Ok(()));
        let more = deliberate_bugs::has(Bug::CountRangeUnread);
        let outcome = CommandOutcome { result: u64::from(ranges) + u64::from(more), ..outcome };
        self.complete(context, permit, outcome, data);
    }
}

/// Reads bytes of a list, from where it is on, into memory; returns how many. They are fewer than
/// `length` at the end of the list, or if a range would have to wait or has an error.
///
/// # Safety
/// `length` bytes at `to` may be written, and nothing else uses them during the call.
unsafe fn fill(
    core: &mut CoreContext,
    work: &IoWork,
    list: &[ListedRange],
    progress: &mut ListProgress,
    to: *mut u8,
    length: u32,
) -> u32 {
    let mut filled = 0;
    while filled < length
        && let Some(range) = progress.next(list)
    {
        let bytes = (range.length_bytes.get() - progress.part).min(length - filled);
        // SAFETY: within the memory of the caller; the operation ends in the next call.
        let span = unsafe { Span::new(to.wrapping_add(filled as usize), bytes) };
        let offset = range.offset_bytes.get() + u64::from(progress.part);
        if !core.read_now(work.namespace, Operation::read(offset, span)) {
            break;
        }
        filled += bytes;
        progress.add(range, bytes);
    }
    filled
}

/// Whether the capsule of Read Ranges, with `received` bytes of in-capsule data, has a list of the
/// length that the command names.
#[cold]
pub(super) fn has_list(work: &IoWork, received: u32) -> bool {
    command_of(work).is_some_and(|command| command.list_bytes() <= received)
}

fn command_of(work: &IoWork) -> Option<ReadRanges> {
    let IoKind::ReadRanges { ranges } = work.kind else { return None };
    // The length was 32 bits when the command was parsed.
    Some(ReadRanges { nsid: work.nsid, ranges, length_bytes: work.length_bytes as u32 })
}

/// Returns the checked list of a command whose capsule [`has_list`].
fn list_of<'a, P: Provider>(
    area: &'a mut Area<P>,
    receive: Receive,
    work: &IoWork,
) -> Result<&'a [ListedRange], Status> {
    let command = command_of(work).ok_or(Status::INTERNAL_ERROR)?;
    // SAFETY: the receive completed, and is posted again with the response only. Storage never uses
    // a list.
    let data = unsafe { area.in_capsule(receive, 0, command.list_bytes()) };
    command.ranges_in(data, work.size_blocks << work.lba_shift)
}

//! Read Ranges: one command that reads several ranges, as far as that waits for nothing.
#![expect(unsafe_code, reason = "lends buffers and memory of the device to storage")]

use ::rdma::{Group, Provider};
use nvme_proto::Status;
use nvme_proto::nvm::{ByteRange, ReadRanges};

use super::data::{HostData, KeyedMemory, OutgoingData, ResponseData};
use super::request::{CompletionPermit, Receive};
use super::{Connection, Ended, TurnContext};
use crate::backend::{Operation, Span};
use crate::controller::command_trace::TracePoint;
use crate::controller::{CommandOutcome, CommandWork, IoKind, IoWork};
use crate::core_context::CoreContext;
use crate::transport::rdma::area::Area;

/// What was read of a list.
#[derive(Debug, Default)]
struct ListProgress {
    /// Ranges that were read completely, and their bytes.
    ranges: u32,
    bytes: u32,
    /// Bytes of the next range that were read.
    part: u32,
}

impl ListProgress {
    /// Reads bytes of the list, from where it is on, into memory; returns how many. They are fewer
    /// than `length` at the end of the list, or if a range would have to wait or has an error.
    ///
    /// # Safety
    /// `length` bytes at `to` may be written, and nothing else uses them during the call.
    unsafe fn read(
        &mut self,
        core: &mut CoreContext,
        work: &IoWork,
        list: &[ByteRange],
        to: *mut u8,
        length: u32,
    ) -> u32 {
        let mut filled = 0;
        while filled < length
            && let Some(range) = list.get(self.ranges as usize)
        {
            let of_range = range.length_bytes.get();
            let piece = (of_range - self.part).min(length - filled);
            // SAFETY: within the memory of the caller; the operation ends in the next call.
            let span = unsafe { Span::new(to.wrapping_add(filled as usize), piece) };
            let offset = range.offset_bytes.get() + u64::from(self.part);
            if !core.read_now(work.namespace, Operation::read(offset, span)) {
                break;
            }
            filled += piece;
            self.part += piece;
            if self.part == of_range {
                (self.ranges, self.bytes, self.part) = (self.ranges + 1, self.bytes + of_range, 0);
            }
        }
        filled
    }
}

impl<P: Provider> Connection<P> {
    /// Executes Read Ranges: checks its list, and reads into memory of the device, or into a
    /// buffer, for which it may have to wait.
    pub(super) fn read_list(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        ranges: u32,
        to: KeyedMemory,
    ) -> Result<(), Ended> {
        let receive = self.slots.get(permit.slot()).receive;
        let list = match list_of(&mut self.area, receive, work, ranges) {
            Ok(list) => list,
            Err(status) => {
                self.fail(context, permit, work, status, None);
                return Ok(());
            }
        };
        if !context.group.has_write_room(self.qp, to.length) {
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
            let filled =
                unsafe { progress.read(context.core, work, list, memory, length) };
            let address = to.address.wrapping_add(sent.into());
            // What lies behind the bytes that were read is from earlier data for this host.
            if filled == 0 || !context.group.send_room(self.qp, room, address, to.key) {
                break;
            }
            sent += filled;
            if filled < length {
                break;
            }
        }
        match progress.bytes == to.length {
            true => self.placing.placed(to.length),
            false => self.placing.missed(),
        }
        let times = &mut self.slots.get(permit.slot()).times;
        times.reach(TracePoint::Buffered, context.core.now);
        times.reach(TracePoint::Executing, context.core.now);
        self.list_is_read(context, permit, work, &progress, ResponseData::None(None));
        Ok(())
    }

    /// Reads the list of a Read Ranges command that has got a buffer.
    pub(super) fn read_list_into_buffer(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        ranges: u32,
        OutgoingData { buffer, to }: OutgoingData,
    ) {
        let receive = self.slots.get(permit.slot()).receive;
        let list = match list_of(&mut self.area, receive, work, ranges) {
            Ok(list) => list,
            Err(status) => return self.fail(context, permit, work, status, Some(buffer)),
        };
        let mut progress = ListProgress::default();
        let memory = context.core.buffers().pool().address(&buffer);
        // SAFETY: the buffer has at least `to.length` bytes and stays with this call.
        unsafe { progress.read(context.core, work, list, memory, to.length) };
        let data = match progress.bytes {
            0 => ResponseData::None(Some(buffer)),
            length => ResponseData::Buffer(OutgoingData {
                buffer,
                to: KeyedMemory { length, ..to },
            }),
        };
        self.list_is_read(context, permit, work, &progress, data);
    }

    /// Completes Read Ranges with the number of ranges that were read, which are counted.
    fn list_is_read(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        progress: &ListProgress,
        data: ResponseData,
    ) {
        let &ListProgress { ranges, bytes, .. } = progress;
        let kind = IoKind::ReadRanges { ranges };
        let read = IoWork { kind, length_bytes: bytes.into(), ..*work };
        let outcome = self.end_io(context.core, &permit, &read, 0, Ok(()));
        let outcome = CommandOutcome { result: ranges.into(), ..outcome };
        self.complete(context, permit, outcome, data);
    }
}

/// Checks that the capsule of Read Ranges has a list of the length that the command names;
/// `received` is the length in bytes of its in-capsule data.
pub(super) fn has_list(work: &CommandWork, received: u32) -> Result<(), Status> {
    match work {
        CommandWork::Io(work @ IoWork { kind: IoKind::ReadRanges { ranges }, .. })
            if command_of(work, *ranges).list_bytes() > received =>
        {
            Err(Status::INVALID_FIELD.with_dnr())
        }
        _ => Ok(()),
    }
}

fn command_of(work: &IoWork, ranges: u32) -> ReadRanges {
    // The length was 32 bits when the command was parsed.
    ReadRanges { nsid: work.nsid, ranges, length_bytes: work.length_bytes as u32 }
}

/// Returns the checked list of a command whose capsule [`has_list`].
fn list_of<'a, P: Provider>(
    area: &'a mut Area<P>,
    receive: Receive,
    work: &IoWork,
    ranges: u32,
) -> Result<&'a [ByteRange], Status> {
    let command = command_of(work, ranges);
    // SAFETY: the receive completed, and is posted again with the response only. Storage never uses
    // a list.
    let data = unsafe { area.in_capsule(receive, 0, command.list_bytes()) };
    command.ranges_in(data, work.size_blocks << work.lba_shift)
}

//! Way of a command: its capsule arrives, its data is located and fetched, and storage executes it.
#![expect(unsafe_code, reason = "lends buffers to device and storage, and reads and writes them")]

use ::rdma::{Op, Provider, SendFlags, SendWr, Sge};
use nvme_proto::{Sqe, Status};

use super::data::{
    ArrivedData, DataPlace, HostData, KeyedMemory, LocalData, OutgoingData, ResponseData,
    StorageStep, invalidated_key, locate, medium_at,
};
use super::range_list::has_list;
use super::request::{
    CompletionPermit, DataFetch, FreeSlot, QuotaOwner, Receive, RequestStage, StorageRun,
};
use super::{Connection, Ended, Leaving, TurnContext, WorkKind};
use crate::backend::{BackendError, Operation, Span};
use crate::controller::command_trace::{TracePoint, TracedCommand};
use crate::controller::{CommandOutcome, CommandWork, IoKind, IoWork, ParsedCommand};
use crate::core_context::pool::Buffer;
use crate::core_context::{CoreContext, OperationOwner, SlotId};
use crate::metrics::latency::Latency;
use crate::storage::Submitted;

impl<P: Provider> Connection<P> {
    /// Handles a capsule of `bytes` bytes in a receive, which waits if there is no free slot.
    pub(super) fn received(
        &mut self,
        context: &mut TurnContext<'_, P>,
        receive: u32,
        bytes: u32,
    ) -> Result<(), Ended> {
        if self.arrived.is_empty()
            && let Some(free) = self.free_slot(context)
        {
            return self.begin(context, free, Receive(receive), bytes);
        }
        self.arrived.push_back((Receive(receive), bytes));
        Ok(())
    }

    /// Takes a slot for a new command, if one may begin now.
    fn free_slot(&mut self, context: &mut TurnContext<'_, P>) -> Option<FreeSlot> {
        let may_begin = matches!(self.leaving, Leaving::No)
            && !context.config.draining
            && !self.waits_for_room(context);
        if may_begin { self.slots.take_free() } else { None }
    }

    /// Starts the commands of waiting capsules in order, while there are free slots.
    pub(super) fn admit(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        while !self.arrived.is_empty()
            && let Some(free) = self.free_slot(context)
            && let Some((receive, bytes)) = self.arrived.pop_front()
        {
            self.begin(context, free, receive, bytes)?;
        }
        Ok(())
    }

    fn begin(
        &mut self,
        context: &mut TurnContext<'_, P>,
        free: FreeSlot,
        receive: Receive,
        bytes: u32,
    ) -> Result<(), Ended> {
        let in_capsule = bytes.checked_sub(size_of::<Sqe>() as u32);
        let in_capsule = in_capsule.ok_or(Ended::ShortCapsule(bytes))?;
        let sqe = self.area.entry(receive);
        let in_flight = self.slots.find(sqe.cid()).is_some() && {
            self.give_up_event_request(context, sqe.cid())?;
            self.slots.find(sqe.cid()).is_some()
        };
        let permit = self.slots.begin(free, sqe.cid(), receive, context.core.now);
        if in_flight {
            let refusal = Status::COMMAND_ID_CONFLICT.with_dnr();
            self.complete(context, permit, refusal.into(), ResponseData::None(None));
            return Ok(());
        }
        // Matched by reference: the command stays where it was parsed.
        match &self.queue.parse_in(&context.core.exports, context.core.now, &sqe) {
            Ok(command) => self.place(context, permit, &sqe, command, in_capsule),
            Err(outcome) => {
                self.complete(context, permit, *outcome, ResponseData::None(None));
                Ok(())
            }
        }
    }

    /// Responds to a read of a medium that has only zeros, which needs neither buffer nor storage.
    #[inline]
    fn return_zeros(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        to: KeyedMemory,
    ) {
        let request = self.slots.get(permit.slot());
        request.times.reach(TracePoint::Executing, context.core.now);
        let outcome = self.end_io(context.core, &permit, work, 0, Ok(()));
        self.respond(context, permit, outcome, ResponseData::Zeros(to));
    }

    /// Locates the data of a command and allocates a buffer if it needs one.
    #[inline]
    fn place(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        sqe: &Sqe,
        command: &ParsedCommand,
        in_capsule: u32,
    ) -> Result<(), Ended> {
        let ParsedCommand { work, transfer } = command;
        let descriptor = sqe.dptr.parse();
        if context.config.can_invalidate {
            self.slots.get(permit.slot()).invalidate = invalidated_key(&descriptor);
        }
        let Some(transfer) = *transfer else {
            return self.execute(context, permit, work, LocalData::None);
        };
        let host = match locate(descriptor, transfer, in_capsule) {
            Ok(host) => host,
            Err(status) => {
                self.refuse(context, permit, work, status, None);
                return Ok(());
            }
        };
        if let CommandWork::Io(list @ IoWork { kind: IoKind::ReadRanges { .. }, .. }) = work
            && !has_list(list, in_capsule)
        {
            self.refuse(context, permit, work, Status::INVALID_FIELD.with_dnr(), None);
            return Ok(());
        }
        match context.core.throttle.is_on() {
            false => self.place_command(context, permit, work, host),
            true => self.meter(context, permit, *work, host, QuotaOwner::Host),
        }
    }

    /// Takes a buffer for data that needs one, and continues the command.
    pub(super) fn place_command(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &CommandWork,
        host: HostData,
    ) -> Result<(), Ended> {
        match (work, host) {
            (
                CommandWork::Io(read @ IoWork { kind: IoKind::ReadZeros, .. }),
                HostData::Returned(to),
            ) => {
                self.return_zeros(context, permit, read, to);
                return Ok(());
            }
            (
                CommandWork::Io(list @ IoWork { kind: IoKind::ReadRanges { .. }, .. }),
                HostData::Returned(to),
            ) => return self.read_list(context, permit, list, to),
            _ => {}
        }
        match host.place(work) {
            DataPlace::Ready(data) => self.execute(context, permit, work, data),
            DataPlace::Buffer(bytes) => {
                if let (HostData::Returned(to), CommandWork::Io(read)) = (host, work)
                    && read.kind == (IoKind::Read { fua: false })
                    && self.place_data(context, read, to)
                {
                    self.placed(context, permit, read);
                    return Ok(());
                }
                self.allocate(context, permit, work, host, bytes)
            }
        }
    }

    /// Completes a read whose data was sent without a buffer.
    fn placed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
    ) {
        let times = &mut self.slots.get(permit.slot()).times;
        times.reach(TracePoint::Buffered, context.core.now);
        times.reach(TracePoint::Executing, context.core.now);
        let outcome = self.end_io(context.core, &permit, work, 0, Ok(()));
        self.complete(context, permit, outcome, ResponseData::None(None));
    }

    /// Allocates a buffer within the share of the host, or waits for one. The share limits a host
    /// that does not accept its data, whose buffers stay in use.
    pub(super) fn allocate(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &CommandWork,
        host: HostData,
        bytes: u32,
    ) -> Result<(), Ended> {
        let whose = self.request_key(context, permit.slot());
        match context.core.buffers().allocate(&self.accounts, whose, bytes) {
            Some(buffer) => self.buffered(context, permit, work, host, buffer),
            None => {
                let request = self.slots.get(permit.slot());
                request.stage = RequestStage::AwaitingBuffer { permit, work: *work, host };
                Ok(())
            }
        }
    }

    /// Continues a request that waited for a buffer.
    pub(in crate::transport::rdma) fn buffer_granted(
        &mut self,
        context: &mut TurnContext<'_, P>,
        owner: OperationOwner,
        buffer: Buffer,
    ) -> Result<(), Ended> {
        let waiting = match owner {
            OperationOwner::Slot(slot) => self.slots.get(slot).take_waiting(),
            OperationOwner::Flush(_) => None,
        };
        match waiting {
            Some((permit, work, host)) => self.buffered(context, permit, &work, host, buffer),
            None => {
                self.release(context, Some(buffer));
                Ok(())
            }
        }
    }

    fn buffered(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &CommandWork,
        host: HostData,
        mut buffer: Buffer,
    ) -> Result<(), Ended> {
        let slot = permit.slot();
        let request = self.slots.get(slot);
        request.times.reach(TracePoint::Buffered, context.core.now);
        let data = match host {
            HostData::Returned(to) => LocalData::Outgoing(OutgoingData { buffer, to }),
            HostData::InCapsule { offset, length } => {
                // SAFETY: nothing was started on the buffer, and the capsule stays until the
                // response.
                unsafe {
                    let data = self.area.in_capsule(request.receive, offset, length);
                    let pool = context.core.buffers().pool();
                    pool.bytes(&mut buffer)[..length as usize].copy_from_slice(data);
                }
                LocalData::Arrived(ArrivedData::Buffer(buffer))
            }
            HostData::Fetched(from) => {
                let fetch = DataFetch { permit, work: *work, buffer, from };
                request.stage = RequestStage::AwaitingFetch(fetch);
                self.to_fetch.push_back(slot);
                return self.fetch(context);
            }
        };
        self.execute(context, permit, work, data)
    }

    /// Posts RDMA READs in order, at most as many as the host serves concurrently (`max_fetches`).
    pub(super) fn fetch(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        while self.fetches < self.max_fetches
            && self.send_entries_left > 0
            && let Some(slot) = self.to_fetch.pop_front()
        {
            let Some(fetch) = self.slots.get(slot).begin_fetch() else { continue };
            self.fetches += 1;
            let addr = context.core.buffers().pool().address(&fetch.buffer) as u64;
            let from = fetch.from;
            let sge = Sge { addr, length: from.length, lkey: context.config.pool_key };
            let wr = SendWr {
                wr_id: self.work_id(WorkKind::Fetch, slot.0),
                op: Op::RdmaRead { remote_addr: from.address, rkey: from.key },
                flags: SendFlags::SIGNALED,
                sges: &[sge],
            };
            // SAFETY: the buffer stays with its request until this completes or the queue pair is
            // released, and nothing else uses it until then.
            unsafe { self.push_send(context, &wr, from.length) }?;
        }
        Ok(())
    }

    /// Continues a request whose RDMA READ has completed.
    pub(super) fn fetched(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: u32,
    ) -> Result<(), Ended> {
        let fetch = self.slots.get(SlotId(slot)).take_fetch();
        let DataFetch { permit, work, buffer, from } =
            fetch.ok_or(Ended::UnknownWork(WorkKind::Fetch))?;
        self.fetches -= 1;
        self.moved(context, 1, from.length);
        let data = LocalData::Arrived(ArrivedData::Buffer(buffer));
        self.execute(context, permit, &work, data)?;
        self.pump(context)
    }

    fn execute(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &CommandWork,
        data: LocalData,
    ) -> Result<(), Ended> {
        let request = self.slots.get(permit.slot());
        request.times.reach(TracePoint::Executing, context.core.now);
        match work {
            CommandWork::Control(work) => self.control(context, permit, *work, data),
            CommandWork::Io(work) => {
                self.start(context, permit, work, data);
                Ok(())
            }
        }
    }

    #[inline]
    fn start(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        data: LocalData,
    ) {
        match StorageStep::first(work.kind, data) {
            Ok(StorageStep::ReadRanges(data, progress)) => {
                self.advance_list(context, permit, work, data, progress);
            }
            Ok(step) => self.advance(context, permit, work, step),
            Err(data) => {
                self.fail(context, permit, work, Status::INTERNAL_ERROR, data.into_buffer());
            }
        }
    }

    /// Submits the steps of a command until one does not end immediately.
    fn advance(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        mut step: StorageStep,
    ) {
        let slot = permit.slot();
        let result = loop {
            let operation = match self.operation(context, slot, work, &mut step) {
                Ok(Some(operation)) => operation,
                Ok(None) => break Ok(()),
                Err(status) => {
                    return self.fail_step(context, permit, work, status, step);
                }
            };
            let whose = self.request_key(context, slot);
            match context.core.submit(whose, work.namespace, operation) {
                Submitted::UnderWay(operation) => {
                    self.operations += 1;
                    let run = StorageRun { permit, work: *work, step, operation, abort: None };
                    self.slots.get(slot).stage = RequestStage::Executing(run);
                    return;
                }
                Submitted::Over(Ok(())) => match step.next() {
                    Ok(next) => step = next,
                    Err(last) => return self.finish(context, permit, work, last, Ok(())),
                },
                Submitted::Over(failed) => break failed,
            }
        };
        self.finish(context, permit, work, step, result);
    }

    /// Returns the operation of a step; `None` for a Deallocate without a further range.
    fn operation(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
        step: &mut StorageStep,
    ) -> Result<Option<Operation>, Status> {
        let (offset, length) = (work.offset_bytes, work.length_bytes);
        let pool = context.core.buffers().pool();
        Ok(Some(match step {
            StorageStep::Read(OutgoingData { buffer, to }) => {
                // SAFETY: the buffer stays with its request, and no device uses it, until the
                // operation ends: the response comes after that, and an ending connection waits
                // for it.
                Operation::read(offset, unsafe { pool.span(buffer, 0, to.length) })
            }
            StorageStep::Compare(buffer) => {
                let length = length as u32;
                // SAFETY: as above.
                Operation::read(offset, unsafe { pool.span(buffer, medium_at(length), length) })
            }
            StorageStep::Write(data) => {
                let durable = work.kind == IoKind::Write { fua: true };
                Operation::write(offset, self.span(context, slot, data), durable)
            }
            StorageStep::FlushThenRead(_) | StorageStep::FlushThenCompare(_) => Operation::flush(),
            // Its operations are those of `advance_list`.
            StorageStep::ReadRanges(..) => return Err(Status::INTERNAL_ERROR),
            StorageStep::Plain => match work.kind {
                IoKind::WriteZeroes { fua, deallocate } => {
                    Operation::write_zeroes(offset, length, fua, deallocate)
                }
                _ => Operation::flush(),
            },
            StorageStep::Deallocate { ranges, passed } => {
                let bytes: &[u8] = match ranges {
                    // SAFETY: the data was fetched, and storage never uses a list of ranges.
                    ArrivedData::Buffer(buffer) => unsafe { pool.bytes(buffer) },
                    ArrivedData::Capsule { offset, length } => {
                        let receive = self.slots.get(slot).receive;
                        // SAFETY: the receive completed, and is posted again with the response
                        // only.
                        unsafe { self.area.in_capsule(receive, *offset, *length) }
                    }
                };
                if *passed == 0 {
                    self.queue.check_ranges(work, bytes)?;
                }
                let next = self.queue.next_range(work, bytes, passed);
                return Ok(next.map(|(offset, length)| Operation::deallocate(offset, length)));
            }
        }))
    }

    /// Returns the memory of data from the host, for a storage operation.
    fn span(&mut self, context: &mut TurnContext<'_, P>, slot: SlotId, data: &ArrivedData) -> Span {
        match data {
            // SAFETY: as for reads.
            ArrivedData::Buffer(buffer) => unsafe {
                context.core.buffers().pool().span(buffer, 0, buffer.length())
            },
            // SAFETY: likewise; the receive is posted again with the response.
            ArrivedData::Capsule { offset, length } => unsafe {
                self.area.span(self.slots.get(slot).receive, *offset, *length)
            },
        }
    }

    /// Continues a request whose storage operation has ended.
    pub(in crate::transport::rdma) fn executed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        owner: OperationOwner,
        result: Result<(), BackendError>,
    ) {
        self.operations -= 1;
        let slot = match owner {
            OperationOwner::Slot(slot) => slot,
            OperationOwner::Flush(job) => return self.flushed(context, job, result),
        };
        let Some(run) = self.slots.get(slot).take_run() else { return };
        let StorageRun { permit, work, step, abort, .. } = run;
        let Some(abort) = abort else {
            return self.step_ended(context, permit, &work, step, result);
        };
        let aborted = result == Err(BackendError::Cancelled);
        if aborted {
            self.fail_step(context, permit, &work, Status::ABORT_REQUESTED, step);
        } else {
            self.step_ended(context, permit, &work, step, result);
        }
        self.queue.answer_abort(abort, aborted);
    }

    fn step_ended(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        step: StorageStep,
        result: Result<(), BackendError>,
    ) {
        let step = match step {
            StorageStep::ReadRanges(data, progress) => {
                return self.range_is_read(context, permit, work, (data, progress), result);
            }
            step => step,
        };
        let next = if result.is_ok() { step.next() } else { Err(step) };
        match next {
            Ok(next) => self.advance(context, permit, work, next),
            Err(last) => self.finish(context, permit, work, last, result),
        }
    }

    /// Completes an I/O command whose last step has ended.
    fn finish(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: &IoWork,
        mut step: StorageStep,
        result: Result<(), BackendError>,
    ) {
        if let (StorageStep::Compare(buffer), Ok(())) = (&mut step, result) {
            // SAFETY: the operation has ended, and no device uses the buffer.
            let bytes = unsafe { context.core.buffers().pool().bytes(buffer) };
            let (host, medium) = bytes.split_at(medium_at(work.length_bytes as u32) as usize);
            if host[..medium.len()] != *medium {
                return self.fail_step(context, permit, work, Status::COMPARE_FAILURE, step);
            }
        }
        let outcome = self.end_io(context.core, &permit, work, step.ranges_passed(), result);
        self.complete(context, permit, outcome, step.into_response(outcome.status));
    }

    /// Counts an I/O command that ends with this result, and returns its outcome.
    #[inline(always)]
    pub(super) fn end_io(
        &mut self,
        core: &mut CoreContext,
        permit: &CompletionPermit,
        work: &IoWork,
        ranges_passed: usize,
        result: Result<(), BackendError>,
    ) -> CommandOutcome {
        if let Err(error) = result {
            core.associations.io_failed(core.now, work, ranges_passed, error);
        }
        self.ended(core, permit, work, ranges_passed, result.is_ok());
        self.queue.finish_io(permit.cid(), work, result)
    }

    /// Last trace point of an I/O command: counts it, and has it traced or logged if needed.
    #[inline(always)]
    pub(super) fn ended(
        &mut self,
        core: &mut CoreContext,
        permit: &CompletionPermit,
        work: &IoWork,
        ranges_passed: usize,
        succeeded: bool,
    ) {
        let arrived = self.slots.get(permit.slot()).times.arrived();
        let latency = Latency::from_nanos(core.latency_nanos(arrived));
        if succeeded {
            self.queue.count_latency(work, latency);
        }
        if core.count_io(work, latency, succeeded) {
            self.tell(core, permit, work, ranges_passed, succeeded);
        }
    }

    /// Traces a command that has ended, and logs it if it was slow.
    #[cold]
    fn tell(
        &mut self,
        core: &mut CoreContext,
        permit: &CompletionPermit,
        work: &IoWork,
        ranges_passed: usize,
        succeeded: bool,
    ) {
        let Some(cntlid) = self.queue.cntlid() else { return };
        let id = (cntlid, self.queue.qid(), permit.cid());
        let times = &self.slots.get(permit.slot()).times;
        core.tell_of(&TracedCommand::new(id, work, times, core.now, succeeded), ranges_passed);
    }
}

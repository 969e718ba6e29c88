//! Execution of a command whose data has arrived, by the controller or by storage.
#![expect(unsafe_code, reason = "lends buffers to storage, and reads and writes them")]

use std::fmt;

use ::rdma::Provider;
use nvme_proto::Status;

use super::arrival::medium_at;
use super::{Connection, Ended, FLUSH_SLOT, Leaving, TurnContext};
use crate::backend::{BackendError, Operation, Span};
use crate::controller::command_trace::TracedCommand;
use crate::controller::{
    CommandOutcome, CommandWork, ControlWork, Execution, FlushJob, IoKind, IoWork, Queue,
};
use crate::core_context::CoreContext;
use crate::inventory::index::NamespaceIndex;
use crate::storage::Submitted;
use crate::transport::rdma::connection::request::{Commit, HostData, RequestState, SlotId};

/// Counts and logs a failure of a flush that the controller requested.
fn flush_failed(core: &CoreContext, namespace: NamespaceIndex, result: Result<(), BackendError>) {
    if let Err(error) = result
        && !matches!(error, BackendError::Cancelled | BackendError::Removed)
    {
        core.associations.storage_failed(core.now, namespace, IoKind::Flush, &"flush", error);
    }
}

/// Text that describes a storage operation in the log.
struct Attempt<'a> {
    work: &'a IoWork,
    /// Number of the range of a Deallocate, counted from 1.
    range: usize,
}

impl fmt::Display for Attempt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.work.kind {
            IoKind::Read { .. } | IoKind::ReadZeros => "read",
            IoKind::Compare { .. } => "read for a Compare",
            IoKind::Write { .. } => "write",
            IoKind::WriteZeroes { .. } => "write of zeroes",
            IoKind::Flush => return f.write_str("flush"),
            IoKind::Deallocate => return write!(f, "deallocation of range {}", self.range),
        };
        write!(f, "{name} of {} bytes at {}", self.work.length_bytes, self.work.offset_bytes)
    }
}

impl<P: Provider> Connection<P> {
    pub(super) fn execute(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
    ) -> Result<(), Ended> {
        let request = self.slots.get(slot);
        request.state = RequestState::Executing;
        request.times.executing = context.core.now;
        match request.work {
            Some(CommandWork::Control(work)) => self.control(context, slot, work),
            Some(CommandWork::Io(work)) => self.start(context, slot, &work),
            None => unreachable!("a command that was parsed has work"),
        }
    }

    fn control(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: ControlWork,
    ) -> Result<(), Ended> {
        let now = context.core.now;
        let request = self.slots.get(slot);
        let length = request.length as usize;
        let data: &mut [u8] = match (&mut request.buffer, request.host) {
            // SAFETY: nothing uses the buffer now: its data has been fetched, or is yet to be
            // produced.
            (Some(buffer), _) => unsafe { context.core.buffers().pool().bytes(buffer) },
            (None, HostData::InCapsule { offset }) => {
                // SAFETY: the receive completed, and is posted again with the response only.
                unsafe { self.area.in_capsule(request.receive, offset, request.length) }
            }
            (None, _) => &mut [],
        };
        let data = &mut data[..length];
        let queue = self.queue.as_mut().expect("a connection has its queue until it is ending");
        let execution = queue.execute(now, request.cid, work, data);
        self.recognise(context);
        self.note_connected(context)?;
        context.look_by(context.core.now);
        match execution {
            Execution::Complete(outcome) => self.respond(context, slot, outcome),
            Execution::Disconnect(outcome) => {
                self.park(context, slot);
                self.leaving = Leaving::Asked { slot, outcome };
                self.leave(context)
            }
            Execution::Parked => {
                self.park(context, slot);
                Ok(())
            }
        }
    }

    fn park(&mut self, context: &mut TurnContext<'_, P>, slot: SlotId) {
        let request = self.slots.get(slot);
        request.state = RequestState::Parked;
        let buffer = request.buffer.take();
        self.release(context, buffer);
    }

    /// Continues a Disconnect: responds when no other command is running, then ends the connection.
    pub(super) fn leave(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        match self.leaving {
            Leaving::Asked { slot, outcome } if self.owes_nothing() => {
                self.leaving = Leaving::Answered;
                self.respond(context, slot, outcome)
            }
            Leaving::Answered if self.owes_nothing() => Err(Ended::OrderlyDisconnect),
            Leaving::No | Leaving::Asked { .. } | Leaving::Answered => Ok(()),
        }
    }

    /// Moves the connection from the buffer account of anonymous connections to that of its host,
    /// once the host is connected to a subsystem.
    fn recognise(&mut self, context: &mut TurnContext<'_, P>) {
        let queue = self.queue.as_ref().and_then(Queue::controller);
        if let Some(controller) = queue.filter(|controller| controller.subsystem().is_some()) {
            context.core.buffers().recognise(&mut self.accounts, controller.host.nqn);
        }
    }

    fn start(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
    ) -> Result<(), Ended> {
        let (offset, length) = (work.offset_bytes, work.length_bytes);
        let operation = match work.kind {
            IoKind::ReadZeros => return self.finish(context, slot, work, Ok(())),
            IoKind::Read { fua: true } | IoKind::Compare { fua: true }
                if self.slots.get(slot).commit != Commit::Done =>
            {
                return self.commit(context, slot, work);
            }
            IoKind::Read { .. } => Operation::read(offset, self.span(context, slot, 0)),
            IoKind::Write { fua } => Operation::write(offset, self.span(context, slot, 0), fua),
            IoKind::Flush => Operation::flush(),
            IoKind::WriteZeroes { fua, deallocate } => {
                Operation::write_zeroes(offset, length, fua, deallocate)
            }
            IoKind::Compare { .. } => {
                let at = medium_at(self.slots.get(slot).length);
                Operation::read(offset, self.span(context, slot, at))
            }
            IoKind::Deallocate => return self.deallocate(context, slot, work),
        };
        match self.submit(context, slot, work, operation) {
            Some(result) => self.executed_unaborted(context, slot, work, result),
            None => Ok(()),
        }
    }

    /// Flushes earlier writes before a Read or Compare with Force Unit Access (NVM, Read).
    fn commit(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
    ) -> Result<(), Ended> {
        self.slots.get(slot).commit = Commit::Flushing;
        match self.submit(context, slot, work, Operation::flush()) {
            Some(result) => self.committed(context, slot, work, result),
            None => Ok(()),
        }
    }

    fn committed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
        result: Result<(), BackendError>,
    ) -> Result<(), Ended> {
        self.slots.get(slot).commit = Commit::Done;
        match result {
            Ok(()) => self.start(context, slot, work),
            failed => self.finish(context, slot, work, failed),
        }
    }

    /// Continues a Deallocate: submits its next ranges until one does not complete immediately.
    fn deallocate(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
    ) -> Result<(), Ended> {
        loop {
            let operation = match self.next_range(context, slot, work) {
                Ok(Some((offset, length))) => Operation::deallocate(offset, length),
                Ok(None) => return self.finish(context, slot, work, Ok(())),
                Err(status) => return self.fail(context, slot, work, status),
            };
            match self.submit(context, slot, work, operation) {
                Some(Ok(())) => {}
                Some(failed) => return self.finish(context, slot, work, failed),
                None => return Ok(()),
            }
        }
    }

    /// Submits an operation to storage. Returns the result if the operation ended immediately.
    fn submit(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
        operation: Operation,
    ) -> Option<Result<(), BackendError>> {
        let whose = self.request_key(context, slot);
        match context.core.submit(whose, work.namespace, operation) {
            Submitted::Over(result) => Some(result),
            Submitted::UnderWay(operation) => {
                self.operations += 1;
                self.slots.get(slot).operation = Some(operation);
                None
            }
        }
    }

    /// Returns the memory of a request's data, `from` bytes into its buffer.
    fn span(&mut self, context: &mut TurnContext<'_, P>, slot: SlotId, from: u32) -> Span {
        let request = self.slots.get(slot);
        match (&request.buffer, request.host) {
            // SAFETY: the buffer stays with its request, and no device uses it, until the operation
            // ends: the response comes after that, and an ending connection waits for it.
            (Some(buffer), _) => unsafe {
                context.core.buffers().pool().span(buffer, from, request.length)
            },
            // SAFETY: likewise; the receive is posted again with the response.
            (None, HostData::InCapsule { offset }) => unsafe {
                self.area.span(request.receive, offset, request.length)
            },
            (None, _) => unreachable!("a command that moves data has it somewhere"),
        }
    }

    fn next_range(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
    ) -> Result<Option<(u64, u64)>, Status> {
        let request = self.slots.get(slot);
        let data: &[u8] = match (&mut request.buffer, request.host) {
            // SAFETY: the data was fetched, and storage never uses a list of ranges.
            (Some(buffer), _) => unsafe { context.core.buffers().pool().bytes(buffer) },
            (None, HostData::InCapsule { offset }) => {
                // SAFETY: the receive completed, and is posted again with the response only.
                unsafe { self.area.in_capsule(request.receive, offset, request.length) }
            }
            (None, _) => &[],
        };
        let data = &data[..request.length as usize];
        let queue = self.queue.as_ref().expect("a connection has its queue until it is ending");
        if request.ranges_passed == 0 {
            queue.check_ranges(work, data)?;
        }
        Ok(queue.next_range(work, data, &mut request.ranges_passed))
    }

    /// Starts a flush of a namespace that the controller requested.
    pub(super) fn flush(&mut self, context: &mut TurnContext<'_, P>, flush: FlushJob) {
        let whose = self.request_key(context, SlotId(FLUSH_SLOT | flush.number()));
        match context.core.flush(whose, flush.namespace) {
            Submitted::Over(result) => {
                flush_failed(context.core, flush.namespace, result);
                self.queue().flushed(context.core.now, flush, result);
            }
            Submitted::UnderWay(_) => {
                self.operations += 1;
                self.flushes.push(flush);
            }
        }
    }

    /// Reports the result of a flush that the controller requested.
    fn flushed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        number: u32,
        result: Result<(), BackendError>,
    ) {
        let at = self.flushes.iter().position(|flush| flush.number() == number);
        let flush = self.flushes.swap_remove(at.expect("it was begun"));
        flush_failed(context.core, flush.namespace, result);
        self.queue().flushed(context.core.now, flush, result);
        // The controller may have posted a further flush or a response.
        context.look_by(context.core.now);
    }

    /// Continues a request whose storage operation has ended.
    pub(crate) fn executed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: u32,
        result: Result<(), BackendError>,
    ) -> Result<(), Ended> {
        self.operations -= 1;
        if slot & FLUSH_SLOT != 0 {
            self.flushed(context, slot & !FLUSH_SLOT, result);
            return Ok(());
        }
        let slot = SlotId(slot);
        let request = self.slots.get(slot);
        request.operation = None;
        let Some(CommandWork::Io(work)) = request.work else {
            unreachable!("storage works for I/O commands")
        };
        if let Some(abort) = request.abort.take() {
            let aborted = result == Err(BackendError::Cancelled);
            if aborted {
                self.fail(context, slot, &work, Status::ABORT_REQUESTED)?;
            } else {
                self.executed_unaborted(context, slot, &work, result)?;
            }
            self.queue().answer_abort(abort, aborted);
            return Ok(());
        }
        self.executed_unaborted(context, slot, &work, result)
    }

    fn executed_unaborted(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
        result: Result<(), BackendError>,
    ) -> Result<(), Ended> {
        if self.slots.get(slot).commit == Commit::Flushing {
            return self.committed(context, slot, work, result);
        }
        match (work.kind, result) {
            (IoKind::Deallocate, Ok(())) => self.deallocate(context, slot, work),
            (IoKind::Compare { .. }, Ok(())) if !self.is_equal(context, slot) => {
                self.fail(context, slot, work, Status::COMPARE_FAILURE)
            }
            _ => self.finish(context, slot, work, result),
        }
    }

    /// Whether host data and medium data, which are both in the buffer of a Compare, are equal.
    fn is_equal(&mut self, context: &mut TurnContext<'_, P>, slot: SlotId) -> bool {
        let request = self.slots.get(slot);
        let buffer = request.buffer.as_mut().expect("a Compare has a buffer");
        // SAFETY: the operation has ended, and no device uses the buffer.
        let bytes = unsafe { context.core.buffers().pool().bytes(buffer) };
        let length = request.length as usize;
        let medium = &bytes[medium_at(request.length) as usize..];
        bytes[..length] == medium[..length]
    }

    fn finish(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
        result: Result<(), BackendError>,
    ) -> Result<(), Ended> {
        if let Err(error) = result {
            self.storage_failed(context.core, slot, work, error);
        }
        self.count(context.core, slot, work, result.is_ok());
        let cid = self.slots.get(slot).cid;
        let outcome = self.queue().finish_io(cid, work, result);
        self.respond(context, slot, outcome)
    }

    /// Counts a command that has ended; traces it, and logs it if it was slow.
    fn count(&mut self, core: &mut CoreContext, slot: SlotId, work: &IoWork, succeeded: bool) {
        let latency_nanos = core.latency_nanos(self.slots.get(slot).times.arrived);
        if succeeded {
            self.queue().count_latency(work, latency_nanos);
        }
        if core.count_io(work, latency_nanos, succeeded) {
            self.tell_of(core, slot, work, succeeded);
        }
    }

    #[cold]
    fn tell_of(&mut self, core: &CoreContext, slot: SlotId, work: &IoWork, succeeded: bool) {
        let (cntlid, qid) = (self.queue().cntlid(), self.queue().qid());
        let request = self.slots.get(slot);
        if let (Some(cntlid), true) = (cntlid, core.associations.trace().is_active()) {
            let id = (cntlid, qid, request.cid);
            let traced = TracedCommand::new(id, work, &request.times, core.now, succeeded);
            core.associations.trace().add(traced);
        }
        if core.is_slow(request.times.arrived) {
            let attempt = Attempt { work, range: request.ranges_passed };
            core.associations.log_slow(core.now, work, &attempt, &request.times);
        }
    }

    fn storage_failed(
        &mut self,
        core: &CoreContext,
        slot: SlotId,
        work: &IoWork,
        error: BackendError,
    ) {
        if matches!(error, BackendError::Cancelled | BackendError::Removed) {
            return;
        }
        let attempt = Attempt { work, range: self.slots.get(slot).ranges_passed };
        core.associations.storage_failed(core.now, work.namespace, work.kind, &attempt, error);
    }

    /// Handles the end of a storage operation after the connection has ended.
    pub(crate) fn operation_over(
        &mut self,
        core: &mut CoreContext,
        slot: u32,
        result: Result<(), BackendError>,
    ) {
        self.operations -= 1;
        if slot & FLUSH_SLOT != 0 {
            let number = slot & !FLUSH_SLOT;
            let flush = self.flushes.iter().find(|flush| flush.number() == number);
            if let Some(namespace) = flush.map(|flush| flush.namespace) {
                flush_failed(core, namespace, result);
            }
            return;
        }
        let slot = SlotId(slot);
        if let (Err(error), Some(CommandWork::Io(work))) = (result, self.slots.get(slot).work) {
            self.storage_failed(core, slot, &work, error);
        }
        self.slots.get(slot).holds.clear();
        if let Some(buffer) = self.slots.end(slot).buffer {
            core.buffers().release_orphan(&self.accounts, buffer);
        }
    }

    fn fail(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        work: &IoWork,
        status: Status,
    ) -> Result<(), Ended> {
        self.count(context.core, slot, work, false);
        let cid = self.slots.get(slot).cid;
        let outcome = self.queue().io_failed(cid, work, status);
        self.respond(context, slot, outcome)
    }

    /// Responds with an error to a command that was not executed.
    pub(super) fn refuse(
        &mut self,
        context: &mut TurnContext<'_, P>,
        slot: SlotId,
        status: Status,
    ) -> Result<(), Ended> {
        match self.slots.get(slot).work {
            Some(CommandWork::Io(work)) => self.fail(context, slot, &work, status),
            _ => self.respond(context, slot, CommandOutcome::from(status)),
        }
    }
}

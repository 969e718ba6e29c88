//! Life of a connection besides its commands: Connect, events of the controller, and the end.

use std::{fmt, mem};

use ::rdma::{Group, Provider, PushError, Time, WcStatus};
use nvme_proto::Status;

use super::data::ResponseData;
use super::request::{DataFetch, Receive, RequestStage, StorageRun, ThrottledCommand};
use super::{Connection, TurnContext, WorkKind};
use crate::backend::BackendError;
use crate::controller::{AbortRequest, CloseReason, CommandWork, QueueEvent, Quiesce};
use crate::core_context::pool::Buffer;
use crate::core_context::{CoreContext, OperationOwner, RequestKey, SlotId};
use crate::deliberate_bugs::{self, Bug};

/// Reason that a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport::rdma) enum Ended {
    /// The host disconnected, or is unreachable.
    Disconnected,
    /// A work request failed, which moved the queue pair to the ERROR state.
    WorkFailed(WorkKind, WcStatus),
    /// The device reported a failure of the queue pair.
    QueuePairFailed,
    /// The RDMA device was removed or failed.
    DeviceFailed,
    /// A capsule of this many bytes arrived, too few for a submission queue entry.
    ShortCapsule(u32),
    /// The device refused to queue a work request.
    Push(PushError),
    /// The host did not accept responses or supply data by its deadline.
    Stalled,
    /// A work request completed that no request waits for.
    UnknownWork(WorkKind),
    /// No memory could be allocated for its receives.
    NoMemory,
    /// The host sent no Connect, and newer connections displaced it.
    Displaced,
    Controller(CloseReason),
    /// The host sent a Disconnect command.
    OrderlyDisconnect,
    /// The target is stopping.
    Stopping,
}

impl Ended {
    /// Whether the reason is a fault of host or device, which is logged at a higher level.
    fn is_fault(&self) -> bool {
        !matches!(self, Self::Disconnected | Self::OrderlyDisconnect | Self::Stopping)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disconnected => f.write_str("disconnected"),
            Self::WorkFailed(WorkKind::Receive, status) => write!(f, "receive: {status}"),
            Self::WorkFailed(WorkKind::Fetch, status) => write!(f, "reading host memory: {status}"),
            Self::WorkFailed(WorkKind::Data, status) => write!(f, "writing host memory: {status}"),
            Self::WorkFailed(WorkKind::Response, status) => write!(f, "response: {status}"),
            Self::QueuePairFailed => f.write_str("the device reports a failed queue pair"),
            Self::DeviceFailed => f.write_str("the device failed"),
            Self::ShortCapsule(bytes) => write!(f, "a command capsule of {bytes} bytes"),
            Self::Push(error) => write!(f, "work request refused: {error}"),
            Self::Stalled => {
                f.write_str("the host did not take its responses and give its data in time")
            }
            Self::UnknownWork(kind) => write!(f, "completion of an unknown work request: {kind:?}"),
            Self::NoMemory => f.write_str("no memory for its receives"),
            Self::Displaced => {
                f.write_str("it sent no Connect, and newer connections need its place")
            }
            Self::Controller(reason) => write!(f, "{reason}"),
            Self::OrderlyDisconnect => f.write_str("the host disconnected in order"),
            Self::Stopping => f.write_str("the target is stopping"),
        }
    }
}

impl<P: Provider> Connection<P> {
    /// Posts the first receives before the connection is accepted, since commands may arrive before
    /// the connection manager reports that it is established.
    pub(in crate::transport::rdma) fn post_receives(
        &mut self,
        context: &mut TurnContext<'_, P>,
    ) -> Result<(), Ended> {
        context.core.reserve(self.slots.count());
        (0..self.area.receives()).try_for_each(|index| self.post_receive(context, Receive(index)))
    }

    /// Handles a successful Connect, if it has just succeeded: creates and posts the other receives
    /// before the response is sent.
    pub(super) fn note_connected(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        if self.is_connected || !self.queue.is_live() {
            return Ok(());
        }
        self.is_connected = true;
        let posted = self.area.receives();
        if let Err(error) = self.area.grow(context.device) {
            tracing::warn!(peer = %self.peer, %error, "no memory for a connection");
            return Err(Ended::NoMemory);
        }
        let more = self.slots.grow();
        context.core.reserve(more);
        context.connected = true;
        (posted..self.area.receives())
            .try_for_each(|index| self.post_receive(context, Receive(index)))
    }

    pub(in crate::transport::rdma) fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Whether the connection was not used since the transport has counted this many pauses.
    pub(in crate::transport::rdma) fn missed(&mut self, pauses: u32) -> bool {
        mem::replace(&mut self.pauses, pauses) != pauses
    }

    /// Ends a connection whose host has sent no command for two Keep Alive Timeouts.
    pub(in crate::transport::rdma) fn end_if_abandoned(
        &mut self,
        context: &TurnContext<'_, P>,
    ) -> Result<(), Ended> {
        match self.queue.end_if_abandoned(context.core.now) {
            true => Err(Ended::Controller(CloseReason::KeepAlive)),
            false => Ok(()),
        }
    }

    /// Ends a connection whose host exceeded its deadline, and handles events of the controller.
    pub(in crate::transport::rdma) fn look(
        &mut self,
        context: &mut TurnContext<'_, P>,
    ) -> Result<(), Ended> {
        self.mark.clear();
        if self.outstanding.deadline().is_some_and(|at| at <= context.core.now) {
            return Err(Ended::Stalled);
        }
        self.handle_queue_events(context)
    }

    pub(super) fn handle_queue_events(
        &mut self,
        context: &mut TurnContext<'_, P>,
    ) -> Result<(), Ended> {
        while let Some(event) = self.queue.poll(context.core.now) {
            match event {
                QueueEvent::Complete { cid, outcome } => {
                    let slot = self.slots.find(cid);
                    let parked = slot.and_then(|slot| self.slots.get(slot).take_parked());
                    if let Some(permit) = parked {
                        self.complete(context, permit, outcome, ResponseData::None(None));
                    }
                }
                QueueEvent::Resume { cid } => self.resume(context, cid)?,
                QueueEvent::Abort(abort) => self.abort(context, abort),
                QueueEvent::Quiesce(quiesce) => self.quiesce(context, &quiesce),
                QueueEvent::Flush(flush) => self.flush(context, flush),
                QueueEvent::Close(reason) => return Err(Ended::Controller(reason)),
            }
        }
        Ok(())
    }

    /// Time at which [`Connection::look`] must run again.
    pub(in crate::transport::rdma) fn deadline(&self) -> Option<Time> {
        if self.is_ending() {
            return None;
        }
        self.queue.deadline().into_iter().chain(self.outstanding.deadline()).min()
    }

    /// Aborts a command that does not execute yet, or requests that storage cancels its operation.
    fn abort(&mut self, context: &mut TurnContext<'_, P>, abort: AbortRequest) {
        let Some(slot) = self.slots.find(abort.cid) else {
            return self.queue.answer_abort(abort, false);
        };
        let whose = self.request_key(context, slot);
        let request = self.slots.get(slot);
        let (permit, work, buffer) = match request.stage.take() {
            RequestStage::AwaitingBuffer { permit, work, .. } => {
                context.core.buffers().leave(&self.accounts, whose);
                (permit, work, None)
            }
            RequestStage::AwaitingQuota(ThrottledCommand { permit, work, waits_as, .. }) => {
                context.core.throttle.leave(context.core.now, whose, waits_as);
                (permit, CommandWork::Io(work), None)
            }
            RequestStage::AwaitingFetch(DataFetch { permit, work, buffer, .. }) => {
                self.to_fetch.retain(|other| *other != slot);
                (permit, work, Some(buffer))
            }
            RequestStage::Executing(run) if run.abort.is_none() => {
                let operation = run.operation;
                let run = StorageRun { abort: Some(abort), ..run };
                request.stage = RequestStage::Executing(run);
                return context.core.storage().cancel(operation);
            }
            other => {
                request.stage = other;
                return self.queue.answer_abort(abort, false);
            }
        };
        self.refuse(context, permit, &work, Status::ABORT_REQUESTED, buffer);
        self.queue.answer_abort(abort, true);
    }

    /// Attaches a hold to running I/O commands until they end. Something waits for them, so they
    /// no longer wait for quotas.
    fn quiesce(&mut self, context: &mut TurnContext<'_, P>, quiesce: &Quiesce) {
        for slot in self.slots.in_use() {
            let request = self.slots.get(slot);
            if let Some(work) = request.running_io() {
                let hold = quiesce.of(&work);
                if let (Some(_), RequestStage::AwaitingQuota(throttled)) = (&hold, &request.stage) {
                    context.core.throttle.release_one(context.core.now, throttled.waits_as);
                }
                request.holds.extend(hold);
            }
        }
    }

    /// Responds to the Abort of a request whose operation cannot be cancelled and continues.
    pub(in crate::transport::rdma) fn not_cancelled(&mut self, owner: OperationOwner) {
        let OperationOwner::Slot(slot) = owner else { return };
        if let RequestStage::Executing(run) = &mut self.slots.get(slot).stage
            && let Some(abort) = run.abort.take()
        {
            self.queue.answer_abort(abort, false);
        }
    }

    /// Whether the connection may end when the target drains: all commands have their responses,
    /// and no I/O queue needs this admin queue.
    pub(in crate::transport::rdma) fn is_drained(&self) -> bool {
        let controller = self.queue.controller().filter(|_| self.queue.qid().is_admin());
        let needed = controller.is_some_and(|controller| controller.has_io_connections());
        !needed && self.owes_nothing()
    }

    /// Whether every command has its response, except those that the controller keeps open.
    pub(super) fn owes_nothing(&self) -> bool {
        self.slots.are_parked()
    }

    pub(in crate::transport::rdma) fn is_ending(&self) -> bool {
        self.queue.has_left()
    }

    /// Ends the connection and releases its queue pair: data from the host is not placed in memory
    /// after this, and running commands get no response. Memory that storage does not use is freed.
    pub(in crate::transport::rdma) fn end(
        &mut self,
        context: &mut TurnContext<'_, P>,
        why: &Ended,
    ) {
        if self.is_ending() {
            return;
        }
        let (peer, qid) = (&self.peer, self.queue.qid());
        if why.is_fault() && context.core.associations.log_rate().admit(context.core.now) {
            tracing::info!(%peer, %qid, "connection ended: {why}");
        } else {
            tracing::debug!(%peer, %qid, "connection ended: {why}");
        }
        // The device does not use its buffers after this.
        context.group.release(self.qp);
        let connection = self.request_key(context, SlotId(0));
        context.core.buffers().leave_all(&self.accounts, connection);
        for slot in self.slots.in_use() {
            let request = self.slots.get(slot);
            match request.stage.take() {
                RequestStage::Executing(StorageRun { permit, work, step, operation, abort }) => {
                    permit.abandon();
                    abort.into_iter().for_each(|abort| self.queue.answer_abort(abort, false));
                    request.stage = RequestStage::Orphaned { work, step };
                    context.core.storage().cancel(operation);
                }
                RequestStage::AwaitingQuota(throttled) => {
                    let whose = RequestKey { owner: OperationOwner::Slot(slot), ..connection };
                    context.core.throttle.leave(context.core.now, whose, throttled.waits_as);
                    request.stage = RequestStage::AwaitingQuota(throttled);
                    request.holds.clear();
                }
                other => {
                    request.stage = other;
                    request.holds.clear();
                }
            }
        }
        let hold = self.queue.leave();
        for slot in self.slots.in_use() {
            let request = self.slots.get(slot);
            let RequestStage::Orphaned { work, step } = &request.stage else {
                let buffer = self.slots.abandon(slot);
                self.release(context, buffer);
                continue;
            };
            if work.kind.changes_medium() || deliberate_bugs::has(Bug::AwaitReads) {
                request.holds.extend(hold.clone());
            }
            if let Some(buffer) = step.buffer() {
                context.core.buffers().orphan(&self.accounts, buffer);
            }
        }
    }

    /// Handles the end of a storage operation after the connection has ended.
    pub(in crate::transport::rdma) fn operation_over(
        &mut self,
        core: &mut CoreContext,
        owner: OperationOwner,
        result: Result<(), BackendError>,
    ) {
        self.operations -= 1;
        let slot = match owner {
            OperationOwner::Slot(slot) => slot,
            OperationOwner::Flush(job) => return self.flush_over(core, job, result),
        };
        let Some((work, step)) = self.slots.get(slot).take_orphan() else { return };
        if let Err(error) = result {
            core.associations.io_failed(core.now, &work, step.ranges_passed(), error);
        }
        self.slots.get(slot).holds.clear();
        // Its buffer was taken out with the step.
        let _ = self.slots.abandon(slot);
        if let Some(buffer) = step.into_buffer() {
            core.buffers().release_orphan(&self.accounts, buffer);
        }
    }

    /// Gives back a buffer that a request of the ended connection has just got.
    pub(in crate::transport::rdma) fn give_back(&self, core: &mut CoreContext, buffer: Buffer) {
        core.buffers().release(&self.accounts, buffer);
    }

    /// Whether storage operations still use its memory.
    pub(in crate::transport::rdma) fn is_busy(&self) -> bool {
        self.operations > 0
    }

    /// Gives up all commands, because the transport is dropped.
    pub(in crate::transport::rdma) fn abandon_all(&mut self) {
        self.slots.abandon_all();
    }

    /// Frees the remaining resources of a connection that has ended and is not busy.
    pub(in crate::transport::rdma) fn release_resources(self, core: &mut CoreContext) {
        let requests = self.slots.count();
        core.buffers().part(self.accounts);
        core.unreserve(requests);
    }
}

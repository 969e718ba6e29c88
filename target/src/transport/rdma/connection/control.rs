//! Commands that the controller executes, and flushes that it requests.
#![expect(unsafe_code, reason = "lends data of commands to the controller")]

use ::rdma::Provider;
use nvme_proto::Cid;

use super::data::{ArrivedData, LocalData, OutgoingData, ResponseData};
use super::request::{CompletionPermit, PostponedCommand, RequestStage};
use super::{Connection, Ended, Leaving, TurnContext};
use crate::backend::BackendError;
use crate::controller::{CloseReason, ControlWork, Execution, FlushJob, JobId};
use crate::core_context::{CoreContext, OperationOwner};
use crate::storage::Submitted;

impl<P: Provider> Connection<P> {
    pub(super) fn control(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: ControlWork,
        mut data: LocalData,
    ) -> Result<(), Ended> {
        let now = context.core.now;
        let receive = self.slots.get(permit.slot()).receive;
        let bytes: &mut [u8] = match &mut data {
            LocalData::None => &mut [],
            LocalData::Arrived(ArrivedData::Buffer(buffer))
            | LocalData::Outgoing(OutgoingData { buffer, .. }) => {
                // SAFETY: nothing uses the buffer now: its data has been fetched, or is yet to be
                // produced.
                unsafe { context.core.buffers().pool().bytes(buffer) }
            }
            LocalData::Arrived(ArrivedData::Capsule { offset, length }) => {
                // SAFETY: the receive completed, and is posted again with the response only.
                unsafe { self.area.in_capsule(receive, *offset, *length) }
            }
        };
        let execution = self.queue.execute(now, permit.cid(), work, bytes);
        self.recognise(context);
        context.look_by(now);
        match execution {
            Execution::Complete(outcome) => {
                self.complete(context, permit, outcome, data.into_response(outcome.status));
            }
            Execution::Disconnect(outcome) => {
                self.leaving = Leaving::Asked { slot: permit.slot(), outcome };
                self.park(context, permit, work, data);
                self.leave(context)?;
            }
            Execution::Parked => self.park(context, permit, work, data),
            Execution::Postponed => {
                let request = self.slots.get(permit.slot());
                request.stage = RequestStage::Postponed(PostponedCommand { permit, work, data });
            }
            Execution::CompleteAndClose(outcome) => {
                self.complete(context, permit, outcome, data.into_response(outcome.status));
                self.leaving = Leaving::Answered(Ended::Controller(CloseReason::NotAuthenticated));
            }
        }
        self.note_connected(context)
    }

    fn park(
        &mut self,
        context: &mut TurnContext<'_, P>,
        permit: CompletionPermit,
        work: ControlWork,
        data: LocalData,
    ) {
        let request = self.slots.get(permit.slot());
        request.stage = RequestStage::Parked { permit, work };
        self.release(context, data.into_buffer());
    }

    /// Executes a postponed command again.
    pub(super) fn resume(
        &mut self,
        context: &mut TurnContext<'_, P>,
        cid: Cid,
    ) -> Result<(), Ended> {
        let slot = self.slots.find(cid);
        let postponed = slot.and_then(|slot| self.slots.get(slot).take_postponed());
        match postponed {
            Some(PostponedCommand { permit, work, data }) => {
                self.control(context, permit, work, data)
            }
            None => Ok(()),
        }
    }

    /// Continues a Disconnect: responds when no other command is running, then ends the connection.
    pub(super) fn leave(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        match self.leaving {
            Leaving::Asked { slot, outcome } if self.owes_nothing() => {
                self.leaving = Leaving::Answered(Ended::OrderlyDisconnect);
                if let Some(permit) = self.slots.get(slot).take_parked() {
                    self.complete(context, permit, outcome, ResponseData::None(None));
                }
                Ok(())
            }
            Leaving::Answered(ended) if self.owes_nothing() => Err(ended),
            Leaving::No | Leaving::Asked { .. } | Leaving::Answered(_) => Ok(()),
        }
    }

    /// Moves the connection from the buffer account of anonymous connections to that of its host,
    /// once the host is connected to a subsystem.
    fn recognise(&mut self, context: &mut TurnContext<'_, P>) {
        let controller = self.queue.controller();
        if let Some(controller) = controller.filter(|controller| controller.subsystem().is_some()) {
            context.core.buffers().recognise(&mut self.accounts, controller.host.nqn);
        }
    }

    /// Drops an Asynchronous Event Request if the host reuses its CID for another command: the host
    /// has silently abandoned the request, as hosts with SPDK do when they detach. No other kind of
    /// command is dropped.
    pub(super) fn give_up_event_request(
        &mut self,
        context: &mut TurnContext<'_, P>,
        cid: Cid,
    ) -> Result<(), Ended> {
        // An event that has occurred is reported first.
        self.handle_queue_events(context)?;
        let Some(slot) = self.slots.find(cid) else { return Ok(()) };
        let request = self.slots.get(slot);
        let receive = request.receive;
        if !request.awaits_event() || !self.queue.give_up_event_request(cid) {
            return Ok(());
        }
        let buffer = self.slots.abandon(slot);
        self.release(context, buffer);
        self.post_receive(context, receive)
    }

    /// Starts a flush of a namespace that the controller requested.
    pub(super) fn flush(&mut self, context: &mut TurnContext<'_, P>, flush: FlushJob) {
        let whose = self.operation_key(context, OperationOwner::Flush(flush.job()));
        match context.core.flush(whose, flush.namespace) {
            Submitted::Over(result) => {
                context.core.associations.flush_failed(context.core.now, flush.namespace, result);
                self.queue.flushed(context.core.now, flush, result);
            }
            Submitted::UnderWay(_) => {
                self.operations += 1;
                self.flushes.push(flush);
            }
        }
    }

    /// Reports the result of a flush that the controller requested.
    pub(super) fn flushed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        job: JobId,
        result: Result<(), BackendError>,
    ) {
        let Some(at) = self.flushes.iter().position(|flush| flush.job() == job) else { return };
        let flush = self.flushes.swap_remove(at);
        context.core.associations.flush_failed(context.core.now, flush.namespace, result);
        self.queue.flushed(context.core.now, flush, result);
        // The controller may have posted a further flush or a response.
        context.look_by(context.core.now);
    }

    /// Handles the end of a flush after the connection has ended.
    pub(super) fn flush_over(
        &self,
        core: &CoreContext,
        job: JobId,
        result: Result<(), BackendError>,
    ) {
        if let Some(flush) = self.flushes.iter().find(|flush| flush.job() == job) {
            core.associations.flush_failed(core.now, flush.namespace, result);
        }
    }
}

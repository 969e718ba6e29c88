//! One connection: an NVMe queue, its queue pair, and the requests under way on it.
//!
//! A command goes through `arrival` (its capsule is parsed, its data found and fetched),
//! `execution` (the controller or storage does it) and `response`.

mod arrival;
mod execution;
mod outstanding;
pub(crate) mod request;
mod response;

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use ::rdma::{ConnId, Group, Op, Provider, PushError, QpKey, RecvWr, SendWr, Time, Wc, WcStatus};
use nvme_proto::{Cid, Status};

use self::outstanding::Outstanding;
use super::area::Area;
use super::negotiation::Negotiated;
use super::work_id::{WorkId, WorkKind};
use crate::controller::{
    AbortRequest, Accepted, CloseReason, CommandOutcome, CommandWork, FlushJob, Queue, QueueEvent,
    Settle,
};
use crate::core_context::buffers::Accounts;
use crate::core_context::{CoreContext, RequestKey};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::peer::RemotePeer;
use crate::transport::rdma::connection::request::{Receive, RequestState, SlotId, Slots};

/// In place of a slot, with the number of a [`FlushJob`].
const FLUSH_SLOT: u32 = 1 << 31;

/// A connection in its poll group: one queue pair, one NVMe queue and its requests.
pub(super) struct Connection<P: Provider> {
    key: usize,
    conn: ConnId,
    qp: QpKey,
    peer: RemotePeer,
    /// Nothing once the connection is ending.
    queue: Option<Queue>,
    area: Area<P>,
    slots: Slots,
    /// Its Connect has succeeded, and it has all its receives and slots.
    is_connected: bool,
    /// Capsules that found no free slot: receive, and bytes of the capsule.
    arrived: VecDeque<(Receive, u32)>,
    /// Of the buffers that its requests have or wait for.
    accounts: Accounts,
    /// Requests in line for an RDMA READ.
    to_fetch: VecDeque<SlotId>,
    /// Requests in line for room in the send queue.
    to_respond: Vec<SlotId>,
    /// The transport knows that there are responses to send at the end of the turn.
    announced: bool,
    /// RDMA READs under way, and how many the host serves at once.
    fetches: u32,
    max_fetches: u32,
    /// Room in the send queue.
    send_entries_left: u32,
    /// Work requests that the host has to acknowledge.
    outstanding: Outstanding,
    /// Operations that storage still works on.
    operations: u32,
    /// Flushes among them that the controller asked for.
    flushes: Vec<FlushJob>,
    leaving: Leaving,
    /// It is among those that await the end of a send request.
    counted_in: bool,
}

/// The progress of a Disconnect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// The host has not sent Disconnect.
    No,
    /// It sent Disconnect, which waits for the queue's other commands. No further one is begun.
    Asked { slot: SlotId, outcome: CommandOutcome },
    /// The connection ends when that response was sent.
    Answered,
}

/// The properties that all connections of one transport have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransportConfig {
    /// The key by which the device knows the pool.
    pub(super) pool_key: u32,
    /// Whether the device can invalidate with a response.
    pub(super) can_invalidate: bool,
    /// Whether packets of equal length in a row leave as one train.
    pub(super) trains: bool,
    /// The transport's index in its poll group.
    pub(super) transport: u8,
    /// No further command is taken up.
    pub(super) draining: bool,
}

/// The parts of the core and transport that a connection uses during one call.
pub(super) struct TurnContext<'a, P: Provider> {
    pub(super) group: &'a mut P::Group,
    pub(super) core: &'a mut CoreContext,
    device: &'a P::Device,
    plan: &'a TransportConfig,
    /// When the connection has to be looked at, at the latest.
    pub(super) look_at: Option<Time>,
    /// The connection has responses to send at the end of the turn.
    pub(super) answers: bool,
    /// Its Connect has succeeded just now.
    pub(super) connected: bool,
}

impl<'a, P: Provider> TurnContext<'a, P> {
    pub(super) fn new(
        group: &'a mut P::Group,
        core: &'a mut CoreContext,
        device: &'a P::Device,
        plan: &'a TransportConfig,
    ) -> Self {
        Self { group, core, device, plan, look_at: None, answers: false, connected: false }
    }

    /// Has the connection looked at, at the latest then.
    pub(super) fn look_by(&mut self, at: Time) {
        self.look_at = Some(self.look_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The host went away, or is unreachable.
    Disconnected,
    /// A work request failed, which leaves the queue pair in ERROR.
    WorkFailed(WorkKind, WcStatus),
    /// An event of the device: the queue pair failed.
    QueuePairFailed,
    /// The RDMA device was removed or failed.
    DeviceFailed,
    /// A capsule of this many bytes, too few for an entry.
    ShortCapsule(u32),
    /// The device did not take a work request.
    Push(PushError),
    /// The host did not take its responses and give its data in time.
    Stalled,
    /// There is no memory for its receives.
    NoMemory,
    /// It sent no Connect, and newer connections need its place.
    Displaced,
    /// The controller wants it.
    Controller(CloseReason),
    /// The host sent a Disconnect command.
    OrderlyDisconnect,
    /// The target is stopping.
    Stopping,
}

impl Ended {
    /// Whether the host broke a rule or failed, and did not just leave.
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
    pub(super) fn new(
        key: usize,
        conn: ConnId,
        qp: QpKey,
        area: Area<P>,
        negotiated: Negotiated,
        context: &mut TurnContext<'_, P>,
        accepted: Accepted,
    ) -> Self {
        let slots = area.layout().slots;
        let peer = accepted.peer;
        let accounts = context.core.buffers().join(peer.origin(), slots as usize);
        let (associations, tally) = (&context.core.associations, &context.core.tally);
        let queue = Queue::new(Arc::clone(associations), Arc::clone(tally), accepted);
        let send_entries = context.group.granted(qp).send_wr.min(negotiated.send_entries());
        Self {
            key,
            conn,
            qp,
            peer,
            queue: Some(queue),
            slots: Slots::new(area.first_slots(), slots),
            is_connected: false,
            arrived: VecDeque::with_capacity(area.layout().receives as usize),
            area,
            accounts,
            to_fetch: VecDeque::with_capacity(slots as usize),
            to_respond: Vec::with_capacity(slots as usize),
            announced: false,
            fetches: 0,
            max_fetches: negotiated.initiator_depth.into(),
            send_entries_left: send_entries,
            outstanding: Outstanding::new(context.core.registry.limits().host_timeout),
            operations: 0,
            flushes: Vec::new(),
            leaving: Leaving::No,
            counted_in: false,
        }
    }

    /// A work request is done, or failed.
    pub(super) fn completed(
        &mut self,
        context: &mut TurnContext<'_, P>,
        completion: &Wc,
    ) -> Result<(), Ended> {
        let id = WorkId::from_bits(completion.wr_id);
        if !completion.is_success() {
            return Err(match completion.status {
                WcStatus::FLUSHED => Ended::Disconnected,
                status => Ended::WorkFailed(id.kind, status),
            });
        }
        match id.kind {
            WorkKind::Receive => self.received(context, id.index, completion.byte_len),
            WorkKind::Fetch => self.fetched(context, id.index),
            WorkKind::Response => self.responded(context, id.index),
            WorkKind::Data => Ok(()),
        }
    }

    pub(super) fn conn(&self) -> ConnId {
        self.conn
    }

    pub(super) fn qp(&self) -> QpKey {
        self.qp
    }

    /// Posts the first receives, before the connection is accepted: commands may arrive before the
    /// host is known to be ready.
    pub(super) fn post_receives(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        context.core.reserve(self.slots.count());
        (0..self.area.receives()).try_for_each(|index| self.post_receive(context, Receive(index)))
    }

    /// Connect has succeeded: makes and posts all other receives, before the response is sent.
    pub(super) fn note_connected(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        if self.is_connected || !self.queue().is_live() {
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

    /// Whether its Connect has succeeded.
    pub(super) fn is_connected(&self) -> bool {
        self.is_connected
    }

    #[expect(unsafe_code, reason = "lends the receive's memory to the device")]
    fn post_receive(
        &mut self,
        context: &mut TurnContext<'_, P>,
        receive: Receive,
    ) -> Result<(), Ended> {
        let (sges, count) = self.area.receive_sges(receive);
        let wr = RecvWr { wr_id: self.work_id(WorkKind::Receive, receive.0), sges: &sges[..count] };
        // SAFETY: the area lives until the queue pair is released, and nothing uses this receive's
        // part of it until it completes.
        unsafe { context.group.push_recv(self.qp, &wr) }.map_err(Ended::Push)
    }

    #[expect(unsafe_code, reason = "lends memory to the device")]
    /// # Safety
    /// As for [`Group::push_send`]; the memory belongs to this connection until its queue pair is
    /// released.
    unsafe fn push_send(
        &mut self,
        context: &mut TurnContext<'_, P>,
        wr: &SendWr<'_>,
    ) -> Result<(), Ended> {
        let moves_data = matches!(wr.op, Op::RdmaRead { .. } | Op::RdmaWrite { .. });
        let bytes = if moves_data { wr.sges.iter().map(|sge| sge.length).sum() } else { 0 };
        self.outstanding.posted(context.core.now, bytes);
        self.outstanding.deadline().into_iter().for_each(|at| context.look_by(at));
        self.send_entries_left -= 1;
        // SAFETY: the caller's promise.
        unsafe { context.group.push_send(self.qp, wr) }.map_err(Ended::Push)
    }

    fn work_id(&self, kind: WorkKind, index: u32) -> u64 {
        WorkId { kind, connection: self.key, index }.to_bits()
    }

    fn request_key(&self, context: &TurnContext<'_, P>, slot: SlotId) -> RequestKey {
        RequestKey { transport: context.plan.transport, connection: self.key as u32, slot: slot.0 }
    }

    /// Counts it in or out, when that changes, among those that cannot go on before a send request
    /// of theirs is reported as done.
    pub(super) fn count_in(&mut self, awaiting_sends: &mut usize) {
        let awaits = self.awaits_sends();
        if awaits != self.counted_in {
            self.counted_in = awaits;
            *awaiting_sends = if awaits { *awaiting_sends + 1 } else { *awaiting_sends - 1 };
        }
    }

    fn awaits_sends(&self) -> bool {
        let waiting = self.fetches > 0
            || self.leaving != Leaving::No
            || !self.arrived.is_empty()
            || !self.to_fetch.is_empty()
            || !self.to_respond.is_empty();
        waiting && !self.is_ending()
    }

    fn queue(&mut self) -> &mut Queue {
        self.queue.as_mut().expect("a connection has its queue until it is ending")
    }

    /// The host acknowledged `send_entries` work requests.
    fn moved(&mut self, context: &mut TurnContext<'_, P>, send_entries: u32, bytes: u32) {
        self.send_entries_left += send_entries;
        self.outstanding.done(context.core.now, send_entries, bytes);
        self.outstanding.deadline().into_iter().for_each(|at| context.look_by(at));
    }

    /// Ends a connection whose host has given it up by now.
    pub(super) fn end_if_abandoned(
        &mut self,
        context: &mut TurnContext<'_, P>,
    ) -> Result<(), Ended> {
        match self.queue().end_if_abandoned(context.core.now) {
            true => Err(Ended::Controller(CloseReason::KeepAlive)),
            false => Ok(()),
        }
    }

    /// Ends a connection whose host exceeds a deadline, and handles the controller's events.
    pub(super) fn look(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        if self.outstanding.deadline().is_some_and(|at| at <= context.core.now) {
            return Err(Ended::Stalled);
        }
        self.serve_controller(context)
    }

    /// Handles the events of the controller.
    fn serve_controller(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        while let Some(event) = self.queue().poll(context.core.now) {
            match event {
                QueueEvent::Complete { cid, outcome } => {
                    let parked = self.find(cid, RequestState::Parked);
                    if let Some(slot) = parked {
                        self.respond(context, slot, outcome)?;
                    }
                }
                QueueEvent::Abort(abort) => self.abort(context, abort)?,
                QueueEvent::Settle(settle) => self.settle(&settle),
                QueueEvent::Flush(flush) => self.flush(context, flush),
                QueueEvent::Close(reason) => return Err(Ended::Controller(reason)),
            }
        }
        Ok(())
    }

    /// When [`Connection::look`] must run again.
    pub(super) fn deadline(&self) -> Option<Time> {
        let controller = self.queue.as_ref()?.deadline();
        controller.into_iter().chain(self.outstanding.deadline()).min()
    }

    fn find(&mut self, cid: Cid, state: RequestState) -> Option<SlotId> {
        self.slots.find(cid).filter(|&slot| self.slots.get(slot).state == state)
    }

    /// Aborts a command if it has not gone too far.
    fn abort(
        &mut self,
        context: &mut TurnContext<'_, P>,
        abort: AbortRequest,
    ) -> Result<(), Ended> {
        let Some(slot) = self.slots.find(abort.cid) else {
            self.queue().answer_abort(abort, false);
            return Ok(());
        };
        let whose = self.request_key(context, slot);
        let request = self.slots.get(slot);
        match (request.state, request.operation) {
            (RequestState::AwaitingBuffer, _) => {
                context.core.buffers().leave(&self.accounts, whose);
            }
            (RequestState::AwaitingFetch, _) => self.to_fetch.retain(|other| *other != slot),
            (RequestState::Executing, Some(operation)) if request.abort.is_none() => {
                request.abort = Some(abort);
                context.core.storage().cancel(operation);
                return Ok(());
            }
            _ => {
                self.queue().answer_abort(abort, false);
                return Ok(());
            }
        }
        self.refuse(context, slot, Status::ABORT_REQUESTED)?;
        self.queue().answer_abort(abort, true);
        Ok(())
    }

    /// Has the commands that are under way keep something until they are over.
    fn settle(&mut self, settle: &Settle) {
        for slot in self.slots.in_use() {
            let request = self.slots.get(slot);
            let over =
                matches!(request.state, RequestState::AwaitingResponse | RequestState::Responding);
            if let Some(CommandWork::Io(work)) = request.work.filter(|_| !over) {
                request.holds.extend(settle.of(&work));
            }
        }
    }

    /// The operation of a request could not be cancelled: it goes on.
    pub(super) fn not_cancelled(&mut self, slot: u32) {
        if let Some(abort) = self.slots.get(SlotId(slot)).abort.take() {
            self.queue().answer_abort(abort, false);
        }
    }

    /// Whether it may end when the target drains: it owes nothing, and is not needed by other
    /// queues.
    pub(super) fn is_drained(&self) -> bool {
        let controller = self.queue.as_ref().filter(|queue| queue.qid().is_admin());
        let controller = controller.and_then(Queue::controller);
        let needed = controller.is_some_and(|controller| controller.has_io_connections());
        !needed && self.owes_nothing()
    }

    /// Whether every command that was taken up is answered, but for those the controller keeps
    /// open.
    fn owes_nothing(&self) -> bool {
        self.slots.all(RequestState::Parked)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.queue.is_none()
    }

    /// Stops everything: from here on nothing that the host sends is placed, and no command is
    /// answered. Memory on which storage does not work is free at once.
    pub(super) fn end(&mut self, context: &mut TurnContext<'_, P>, why: &Ended) {
        let Some(mut queue) = self.queue.take() else { return };
        if why.is_fault() && context.core.associations.log_rate().admit(context.core.now) {
            tracing::info!(peer = %self.peer, qid = %queue.qid(), "connection ended: {why}");
        } else {
            tracing::debug!(peer = %self.peer, qid = %queue.qid(), "connection ended: {why}");
        }
        // From here on no device uses its buffers.
        context.group.release(self.qp);
        let connection = self.request_key(context, SlotId(0));
        context.core.buffers().leave_all(&self.accounts, connection);
        for slot in self.slots.in_use() {
            let request = self.slots.get(slot);
            if let Some(abort) = request.abort.take() {
                queue.answer_abort(abort, false);
            }
            if request.state != RequestState::Responding {
                request.abandon();
            }
            if request.operation.is_none() {
                request.holds.clear();
            }
            if let Some(operation) = request.operation {
                context.core.storage().cancel(operation);
            }
        }
        let hold = queue.close();
        for slot in self.slots.in_use() {
            let request = self.slots.get(slot);
            if request.operation.is_none() {
                let buffer = self.slots.end(slot).buffer;
                self.release(context, buffer);
                continue;
            }
            if request.changes_medium() || deliberate_bugs::has(Bug::AwaitReads) {
                request.holds.extend(hold.clone());
            }
            if let Some(buffer) = &request.buffer {
                context.core.buffers().leave_behind(&self.accounts, buffer);
            }
        }
    }

    /// Whether storage still uses its memory.
    pub(super) fn is_busy(&self) -> bool {
        self.operations > 0
    }

    /// The transport goes, commands or not.
    pub(super) fn abandon_all(&mut self) {
        self.slots.abandon_all();
    }

    /// Frees everything, after its end, once it is not busy.
    pub(super) fn release_resources(self, core: &mut CoreContext) {
        let requests = self.slots.count();
        core.buffers().part(self.accounts);
        core.unreserve(requests);
    }
}

//! A connection: an NVMe queue, its queue pair, and its running commands.
//!
//! A command passes through `arrival` (parses its capsule, locates and fetches its data),
//! `execution` (by the controller or storage) and `response`.

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
    Quiesce,
};
use crate::core_context::buffers::Accounts;
use crate::core_context::{CoreContext, RequestKey};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::peer::RemotePeer;
use crate::transport::rdma::connection::request::{Receive, RequestState, SlotId, Slots};

/// Bit of [`RequestKey::slot`] that is set if the rest is the number of a [`FlushJob`].
const FLUSH_SLOT: u32 = 1 << 31;

/// Connection in its poll group: one queue pair, one NVMe queue and its requests.
pub(super) struct Connection<P: Provider> {
    /// Key of the connection in its transport.
    key: usize,
    conn: ConnId,
    qp: QpKey,
    peer: RemotePeer,
    /// NVMe queue; `None` once the connection is ending.
    queue: Option<Queue>,
    area: Area<P>,
    slots: Slots,
    /// Whether Connect has succeeded and the connection has all its receives and slots.
    is_connected: bool,
    /// Capsules that wait for a free slot: the receive, and the length of the capsule in bytes.
    arrived: VecDeque<(Receive, u32)>,
    /// Accounts in which the buffers that its requests have or wait for are counted.
    accounts: Accounts,
    /// Requests whose RDMA READ is not posted yet.
    to_fetch: VecDeque<SlotId>,
    /// Requests whose response is not posted yet, until the turn ends or the send queue has room.
    to_respond: Vec<SlotId>,
    /// Whether the connection is in the transport's list of those with responses to send at the end
    /// of the turn.
    responses_scheduled: bool,
    /// Number of RDMA READs in flight, at most `max_fetches`, which the host serves concurrently.
    fetches: u32,
    max_fetches: u32,
    /// Number of free entries in the send queue.
    send_entries_left: u32,
    /// Work requests that the host has not acknowledged yet.
    outstanding: Outstanding,
    /// Number of running storage operations, flushes included.
    operations: u32,
    /// Running flushes that the controller requested.
    flushes: Vec<FlushJob>,
    leaving: Leaving,
    /// Whether the connection is counted in `RdmaTransport::awaiting_sends`.
    counted_in: bool,
}

/// Progress of an NVMe-oF Disconnect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// The host has not sent Disconnect.
    No,
    /// The host sent Disconnect. Its response (`outcome` for the command in `slot`) waits for the
    /// other commands of the queue; no new command is started.
    Asked { slot: SlotId, outcome: CommandOutcome },
    /// The response was scheduled; the connection ends when it has been sent.
    Answered,
}

/// Properties common to all connections of a transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct TransportConfig {
    /// Local key (lkey) of the buffer pool's memory region.
    pub(super) pool_key: u32,
    /// Whether the device supports Send with Invalidate.
    pub(super) can_invalidate: bool,
    /// Whether equal consecutive packets cost the device less (`Caps::trains`).
    pub(super) trains: bool,
    /// Index of the transport in its poll group.
    pub(super) transport: u8,
    /// Whether the target is stopping, so that no new command is started.
    pub(super) draining: bool,
}

/// Parts of the core and transport that a connection uses during one call, and what it requests
/// from the transport.
pub(super) struct TurnContext<'a, P: Provider> {
    pub(super) group: &'a mut P::Group,
    pub(super) core: &'a mut CoreContext,
    device: &'a P::Device,
    config: &'a TransportConfig,
    /// Latest time at which [`Connection::look`] has to run.
    pub(super) look_at: Option<Time>,
    /// Whether the connection has responses to send at the end of the turn.
    pub(super) answers: bool,
    /// Whether Connect has succeeded during this call.
    pub(super) connected: bool,
}

impl<'a, P: Provider> TurnContext<'a, P> {
    pub(super) fn new(
        group: &'a mut P::Group,
        core: &'a mut CoreContext,
        device: &'a P::Device,
        config: &'a TransportConfig,
    ) -> Self {
        Self { group, core, device, config, look_at: None, answers: false, connected: false }
    }

    /// Requests that the transport calls [`Connection::look`] at `at` or earlier.
    pub(super) fn look_by(&mut self, at: Time) {
        self.look_at = Some(self.look_at.map_or(at, |earlier| earlier.min(at)));
    }
}

/// Reason that a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
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
    /// No memory could be allocated for its receives.
    NoMemory,
    /// The host sent no Connect, and newer connections displaced it.
    Displaced,
    /// The controller closed the queue.
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
        let (associations, io_stats) = (&context.core.associations, &context.core.io_stats);
        let queue = Queue::new(Arc::clone(associations), Arc::clone(io_stats), accepted);
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
            responses_scheduled: false,
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

    /// Handles a completion queue entry of its queue pair.
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

    /// Posts the first receives before the connection is accepted, since commands may arrive before
    /// the connection manager reports that it is established.
    pub(super) fn post_receives(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        context.core.reserve(self.slots.count());
        (0..self.area.receives()).try_for_each(|index| self.post_receive(context, Receive(index)))
    }

    /// Handles a successful Connect, if it has just succeeded: creates and posts the other receives
    /// before the response is sent.
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

    /// Whether Connect has succeeded.
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
    /// The conditions of [`Group::push_send`] hold; the memory belongs to this connection until its
    /// queue pair is released.
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
        RequestKey {
            transport: context.config.transport,
            connection: self.key as u32,
            slot: slot.0,
        }
    }

    /// Updates `awaiting_sends`, the number of connections that wait for a send completion.
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

    /// Records that `send_entries` work requests have completed, which moved `bytes` bytes of data.
    fn moved(&mut self, context: &mut TurnContext<'_, P>, send_entries: u32, bytes: u32) {
        self.send_entries_left += send_entries;
        self.outstanding.done(context.core.now, send_entries, bytes);
        self.outstanding.deadline().into_iter().for_each(|at| context.look_by(at));
    }

    /// Ends a connection whose host has sent no command for two Keep Alive Timeouts.
    pub(super) fn end_if_abandoned(
        &mut self,
        context: &mut TurnContext<'_, P>,
    ) -> Result<(), Ended> {
        match self.queue().end_if_abandoned(context.core.now) {
            true => Err(Ended::Controller(CloseReason::KeepAlive)),
            false => Ok(()),
        }
    }

    /// Ends a connection whose host exceeded its deadline, and handles events of the controller.
    pub(super) fn look(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        if self.outstanding.deadline().is_some_and(|at| at <= context.core.now) {
            return Err(Ended::Stalled);
        }
        self.handle_queue_events(context)
    }

    fn handle_queue_events(&mut self, context: &mut TurnContext<'_, P>) -> Result<(), Ended> {
        while let Some(event) = self.queue().poll(context.core.now) {
            match event {
                QueueEvent::Complete { cid, outcome } => {
                    let parked = self.find(cid, RequestState::Parked);
                    if let Some(slot) = parked {
                        self.respond(context, slot, outcome)?;
                    }
                }
                QueueEvent::Abort(abort) => self.abort(context, abort)?,
                QueueEvent::Quiesce(quiesce) => self.quiesce(&quiesce),
                QueueEvent::Flush(flush) => self.flush(context, flush),
                QueueEvent::Close(reason) => return Err(Ended::Controller(reason)),
            }
        }
        Ok(())
    }

    /// Time at which [`Connection::look`] must run again.
    pub(super) fn deadline(&self) -> Option<Time> {
        let controller = self.queue.as_ref()?.deadline();
        controller.into_iter().chain(self.outstanding.deadline()).min()
    }

    fn find(&mut self, cid: Cid, state: RequestState) -> Option<SlotId> {
        self.slots.find(cid).filter(|&slot| self.slots.get(slot).state == state)
    }

    /// Aborts a command that does not execute yet, or requests that storage cancels its operation.
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

    /// Attaches a hold to running I/O commands until they end.
    fn quiesce(&mut self, quiesce: &Quiesce) {
        for slot in self.slots.in_use() {
            let request = self.slots.get(slot);
            let over =
                matches!(request.state, RequestState::AwaitingResponse | RequestState::Responding);
            if let Some(CommandWork::Io(work)) = request.work.filter(|_| !over) {
                request.holds.extend(quiesce.of(&work));
            }
        }
    }

    /// Responds to the Abort of a request whose operation cannot be cancelled and continues.
    pub(super) fn not_cancelled(&mut self, slot: u32) {
        if let Some(abort) = self.slots.get(SlotId(slot)).abort.take() {
            self.queue().answer_abort(abort, false);
        }
    }

    /// Whether the connection may end when the target drains: all commands have their responses,
    /// and no I/O queue needs this admin queue.
    pub(super) fn is_drained(&self) -> bool {
        let controller = self.queue.as_ref().filter(|queue| queue.qid().is_admin());
        let controller = controller.and_then(Queue::controller);
        let needed = controller.is_some_and(|controller| controller.has_io_connections());
        !needed && self.owes_nothing()
    }

    /// Whether every command has its response, except those that the controller keeps open.
    fn owes_nothing(&self) -> bool {
        self.slots.all(RequestState::Parked)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.queue.is_none()
    }

    /// Ends the connection and releases its queue pair: data from the host is not placed in memory
    /// after this, and running commands get no response. Memory that storage does not use is freed.
    pub(super) fn end(&mut self, context: &mut TurnContext<'_, P>, why: &Ended) {
        let Some(mut queue) = self.queue.take() else { return };
        if why.is_fault() && context.core.associations.log_rate().admit(context.core.now) {
            tracing::info!(peer = %self.peer, qid = %queue.qid(), "connection ended: {why}");
        } else {
            tracing::debug!(peer = %self.peer, qid = %queue.qid(), "connection ended: {why}");
        }
        // The device does not use its buffers after this.
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
                context.core.buffers().orphan(&self.accounts, buffer);
            }
        }
    }

    /// Whether storage operations still use its memory.
    pub(super) fn is_busy(&self) -> bool {
        self.operations > 0
    }

    /// Marks all commands as abandoned, because the transport is dropped.
    pub(super) fn abandon_all(&mut self) {
        self.slots.abandon_all();
    }

    /// Frees the remaining resources of a connection that has ended and is not busy.
    pub(super) fn release_resources(self, core: &mut CoreContext) {
        let requests = self.slots.count();
        core.buffers().part(self.accounts);
        core.unreserve(requests);
    }
}

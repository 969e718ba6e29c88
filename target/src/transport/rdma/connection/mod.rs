//! A connection: an NVMe queue, its queue pair, and its running commands.
//!
//! A command passes through `command` (its capsule arrives, its data is located and fetched, and
//! storage executes it) or `control` (the controller executes it), and `response`. In `metering` it
//! waits for its quotas.

mod command;
mod control;
mod data;
mod life;
mod list_progress;
mod metering;
mod placing;
mod range_list;
pub(super) mod request;
mod response;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ::rdma::{ConnId, Group, Provider, QpKey, RecvWr, SendWr, Time, Wc, WcStatus};

pub(super) use self::life::Ended;
use self::placing::Placing;
use self::request::{Receive, Slots};
use super::area::Area;
use super::negotiation::Negotiated;
use crate::controller::{Accepted, CommandOutcome, FlushJob, Queue};
use crate::core_context::{Accounts, CoreContext, OperationOwner, RequestKey, SlotId};
use crate::doorbell::ready_list::ReadyMark;
use crate::limits::HOST_LEAST_BYTES_PER_SECOND;
use crate::limits::peer::RemotePeer;

/// Connection in its poll group: one queue pair, one NVMe queue and its requests. What each read
/// uses lies together, before the rest: a core that serves many hosts finds little of it in its
/// caches.
#[repr(C)]
pub(super) struct Connection<P: Provider> {
    /// Key of the connection in its transport.
    key: usize,
    qp: QpKey,
    /// Number of pauses of the transport when the connection was last used.
    pauses: u32,
    /// Number of RDMA READs in flight, at most `max_fetches`, which the host serves concurrently.
    fetches: u32,
    max_fetches: u32,
    /// Number of free entries in the send queue.
    send_entries_left: u32,
    /// Whether Connect has succeeded and the connection has all its receives and slots.
    is_connected: bool,
    /// Whether the connection is in the transport's list of those with responses to send at the end
    /// of the turn.
    responses_scheduled: bool,
    /// Whether the connection is in the transport's list of those with commands for the next turn.
    waits_for_turn: bool,
    /// Whether the connection is counted in `RdmaTransport::awaiting_sends`.
    counted_in: bool,
    /// Work requests that the host has not acknowledged yet.
    outstanding: Outstanding,
    /// Requests whose response is not posted yet, until the turn ends or the send queue has room.
    to_respond: Vec<SlotId>,
    placing: Placing,
    slots: Slots,
    leaving: Leaving,
    /// NVMe queue, which it leaves when the connection ends.
    queue: Queue,
    area: Area<P>,
    /// Capsules that wait for a free slot: the receive, and the length of the capsule in bytes.
    arrived: VecDeque<(Receive, u32)>,
    /// Requests whose RDMA READ is not posted yet.
    to_fetch: VecDeque<SlotId>,
    /// Accounts in which the buffers that its requests have or wait for are counted.
    accounts: Accounts,
    /// Number of running storage operations, flushes included.
    operations: u32,
    /// Running flushes that the controller requested.
    flushes: Vec<FlushJob>,
    conn: ConnId,
    /// Mark by which other threads have the connection looked at.
    mark: Arc<ReadyMark>,
    peer: RemotePeer,
}

/// Part of a new connection that its transport supplies.
pub(super) struct EnteredConnection {
    pub(super) key: usize,
    pub(super) conn: ConnId,
    pub(super) qp: QpKey,
    pub(super) mark: Arc<ReadyMark>,
    pub(super) pauses: u32,
}

/// Progress of an NVMe-oF Disconnect command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    /// The host has not sent Disconnect.
    No,
    /// The host sent Disconnect. Its response (`outcome` for the command in `slot`) waits for the
    /// other commands of the queue; no new command is started.
    Asked { slot: SlotId, outcome: CommandOutcome },
    /// The last response was scheduled; the connection ends when it has been sent.
    Answered(Ended),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkKind {
    /// Receive of a command capsule; `index` is that of the receive.
    Receive,
    /// RDMA READ of data from the host; `index` is the slot.
    Fetch,
    /// RDMA WRITE of data to the host, which completes only if it fails; `index` is the slot.
    Data,
    /// Send of a response capsule; `index` is the slot.
    Response,
}

/// Identifier of a work request: bits 63-62 of `wr_id` are the kind, 61-32 the key of the
/// connection, 31-0 the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WorkId {
    pub(super) kind: WorkKind,
    pub(super) connection: usize,
    pub(super) index: u32,
}

impl WorkId {
    pub(super) fn to_bits(self) -> u64 {
        (self.kind as u64) << 62 | (self.connection as u64) << 32 | u64::from(self.index)
    }

    /// Whether two identifiers, as bits, are of one connection.
    pub(super) fn of_one_connection(one: u64, other: u64) -> bool {
        (one ^ other) >> 32 & 0x3FFF_FFFF == 0
    }

    pub(super) fn from_bits(bits: u64) -> Self {
        let kind = match bits >> 62 {
            0 => WorkKind::Receive,
            1 => WorkKind::Fetch,
            2 => WorkKind::Data,
            _ => WorkKind::Response,
        };
        Self { kind, connection: (bits >> 32 & 0x3FFF_FFFF) as usize, index: bits as u32 }
    }
}

/// Number of outstanding work requests, and the deadline by which the host has to acknowledge them.
/// Partial acknowledgements do not extend the deadline: all requests that are outstanding at one
/// moment share a deadline, and later requests get the next one, so each is outstanding for two
/// periods at most.
#[derive(Debug)]
struct Outstanding {
    timeout: Duration,
    entries: u32,
    bytes: u64,
    /// Number of the oldest entries, which have to complete by `due`.
    due_entries: u32,
    /// Deadline of these entries.
    due: Time,
}

impl Outstanding {
    /// Creates it without requests. A period lasts for `timeout`, plus the time for the outstanding
    /// bytes at [`HOST_LEAST_BYTES_PER_SECOND`].
    fn new(timeout: Duration) -> Self {
        Self { timeout, entries: 0, bytes: 0, due_entries: 0, due: Time::ZERO }
    }

    /// Adds a posted entry of the send queue, which moves `bytes` bytes of data. Returns the
    /// deadline if this sets one.
    fn posted(&mut self, now: Time, bytes: u32) -> Option<Time> {
        self.entries += 1;
        self.bytes += u64::from(bytes);
        (self.due_entries == 0).then(|| self.expect_all(now))
    }

    /// Removes the `entries` oldest entries, which moved `bytes` bytes of data. Returns the
    /// deadline of the others if this sets one.
    fn done(&mut self, now: Time, entries: u32, bytes: u32) -> Option<Time> {
        self.entries -= entries;
        self.bytes -= u64::from(bytes);
        self.due_entries = self.due_entries.saturating_sub(entries);
        (self.due_entries == 0 && self.entries > 0).then(|| self.expect_all(now))
    }

    fn expect_all(&mut self, now: Time) -> Time {
        let nanos = self.bytes.saturating_mul(1_000_000_000) / HOST_LEAST_BYTES_PER_SECOND;
        self.due_entries = self.entries;
        self.due = now + self.timeout + Duration::from_nanos(nanos);
        self.due
    }

    /// Deadline for the host; `None` if no work request is outstanding.
    fn deadline(&self) -> Option<Time> {
        (self.due_entries > 0).then_some(self.due)
    }
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
    /// Whether [`Connection::begin_turn`] has to run in the next turn.
    pub(super) waits_for_turn: bool,
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
        let (look_at, answers, waits_for_turn, connected) = (None, false, false, false);
        Self { group, core, device, config, look_at, answers, waits_for_turn, connected }
    }

    /// Requests that the transport calls [`Connection::look`] at `at` or earlier.
    pub(super) fn look_by(&mut self, at: Time) {
        self.look_at = Some(self.look_at.map_or(at, |earlier| earlier.min(at)));
    }
}

impl<P: Provider> Connection<P> {
    pub(super) fn new(
        entered: EnteredConnection,
        area: Area<P>,
        negotiated: Negotiated,
        context: &mut TurnContext<'_, P>,
        accepted: Accepted,
    ) -> Self {
        let EnteredConnection { key, conn, qp, mark, pauses } = entered;
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
            mark,
            pauses,
            peer,
            queue,
            slots: Slots::new(area.first_slots(), slots),
            is_connected: false,
            arrived: VecDeque::with_capacity(area.layout().receives as usize),
            area,
            accounts,
            to_fetch: VecDeque::with_capacity(slots as usize),
            to_respond: Vec::with_capacity(slots as usize),
            placing: Placing::default(),
            responses_scheduled: false,
            waits_for_turn: false,
            fetches: 0,
            max_fetches: negotiated.initiator_depth.into(),
            send_entries_left: send_entries,
            outstanding: Outstanding::new(context.core.inventory.limits().host_timeout),
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

    /// Posts a work request that moves `bytes` bytes of data.
    ///
    /// # Safety
    /// The conditions of [`Group::push_send`] hold; the memory belongs to this connection until its
    /// queue pair is released.
    #[expect(unsafe_code, reason = "lends memory to the device")]
    unsafe fn push_send(
        &mut self,
        context: &mut TurnContext<'_, P>,
        wr: &SendWr<'_>,
        bytes: u32,
    ) -> Result<(), Ended> {
        if let Some(at) = self.outstanding.posted(context.core.now, bytes) {
            context.look_by(at);
        }
        self.send_entries_left -= 1;
        // SAFETY: the caller's promise.
        unsafe { context.group.push_send(self.qp, wr) }.map_err(Ended::Push)
    }

    fn work_id(&self, kind: WorkKind, index: u32) -> u64 {
        WorkId { kind, connection: self.key, index }.to_bits()
    }

    fn request_key(&self, context: &TurnContext<'_, P>, slot: SlotId) -> RequestKey {
        self.operation_key(context, OperationOwner::Slot(slot))
    }

    fn operation_key(&self, context: &TurnContext<'_, P>, owner: OperationOwner) -> RequestKey {
        RequestKey { transport: context.config.transport, connection: self.key as u32, owner }
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
            || !matches!(self.leaving, Leaving::No)
            || !self.arrived.is_empty()
            || !self.to_fetch.is_empty()
            || !self.to_respond.is_empty();
        waiting && !self.is_ending()
    }

    /// Records that `send_entries` work requests have completed, which moved `bytes` bytes of data.
    fn moved(&mut self, context: &mut TurnContext<'_, P>, send_entries: u32, bytes: u32) {
        self.send_entries_left += send_entries;
        if let Some(at) = self.outstanding.done(context.core.now, send_entries, bytes) {
            context.look_by(at);
        }
    }
}

//! The state machine of one device and its connections, driven by [`ErasedEngine::turn`].

pub(crate) mod arena;
pub(crate) mod association_end;
pub(crate) mod block_plan;
pub(crate) mod breaker;
pub(crate) mod change_count;
pub(crate) mod checks;
pub(crate) mod command_trace;
pub(crate) mod connect;
pub(crate) mod connections;
pub(crate) mod controller;
pub(crate) mod device_events;
pub(crate) mod fence;
pub(crate) mod live_routes;
pub(crate) mod namespace_identity;
pub(crate) mod passthrough;
pub(crate) mod path_access;
pub(crate) mod plan_run;
pub(crate) mod plan_state;
pub(crate) mod queue;
pub(crate) mod range;
pub(crate) mod range_op;
pub(crate) mod ready_list;
pub(crate) mod reconnect_delay;
pub(crate) mod rejection;
pub(crate) mod reply;
pub(crate) mod results;
pub(crate) mod same_machine;
pub(crate) mod shard_routes;

pub(crate) mod write_table;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::log::AnaState;
use nvme_proto::{HostId, HostNqn, Status};
use rdma::{
    CmEvent, ConnectionManager, Device, Group, GroupConfig, GroupStats, Provider, Time, WakeFor, Wc,
};

use crate::engine::arena::{
    Arena, ArenaKey, ControllerKey, NamespaceKey, PlanKey, QueueKey, RangeKey, RingKey, RunKey,
};
use crate::engine::change_count::ChangeKind;
use crate::engine::connections::{ConnectionRole, Connections};
use crate::engine::controller::{
    Attached, ControllerLimits, ControllerPhase, ControllerState, FirstConnect, KeepAlive, Raw,
    Task,
};
use crate::engine::device_events::DeviceEvents;
use crate::engine::fence::Fence;
use crate::engine::namespace_identity::NamespaceIdentity;
use crate::engine::path_access::PathAccess;
use crate::engine::plan_run::PlanRun;
use crate::engine::queue::{FinishedCommand, HostQueue, WrId, WrKind};
use crate::engine::range_op::{RangeOp, Submission};
use crate::engine::ready_list::ReadyList;
use crate::engine::reconnect_delay::Retries;
use crate::engine::reply::Promise;
use crate::engine::results::Outbox;
use crate::engine::same_machine::{AnyDevice, NearTarget, PathChange, PathChoice};
use crate::engine::shard_routes::TargetLoad;
use crate::memory::bounce::BouncePool;
use crate::memory::region::{CurrentScope, ErasedScope, RegistrationScope};
use crate::types::counters::HostCounters;
use crate::types::error::{Error, ErrorKind, SubsystemAddress, UnreachableCause};
use crate::types::options::ControllerOptions;

/// Result of a turn: when the next one is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// More work is ready: turn again immediately.
    Busy,
    /// No work is due before this time (`None`: at no time), unless a wake-up comes earlier.
    SleepUntil(Option<Time>),
}

impl NextTurn {
    /// Returns the earlier of both.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::SleepUntil(a), Self::SleepUntil(b)) => Self::SleepUntil(earliest(a, b)),
            _ => Self::Busy,
        }
    }
}

/// Returns the earlier of two optional times.
pub(crate) fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Identity of a host, sent with each Connect command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostIdentity {
    pub(crate) nqn: HostNqn,
    pub(crate) id: HostId,
}

/// Interface of [`HostEngine`] without the type of its provider.
pub(crate) trait ErasedEngine: Send {
    /// Does the work that is ready at `now`, without blocking.
    fn turn(&mut self, now: Time, outbox: &mut Outbox) -> NextTurn;
    /// Adds a controller, which is connected from the next turn on. `opened` is resolved when the
    /// controller is usable, or with the error for which it is not.
    fn connect(
        &mut self,
        target: Arc<SubsystemAddress>,
        options: ControllerOptions,
        opened: Promise<ControllerLimits>,
    ) -> Result<Connecting, Error>;
    /// Removes a controller after an orderly shutdown, which starts at the next turn.
    fn close(&mut self, controller: ControllerKey);
    /// Assigns an engine without controllers to another target on this machine; false if it cannot
    /// change its target.
    fn retarget(&mut self, target: NearTarget) -> bool;
    /// Returns the change of provider that an attempt to connect requested and waits for, if there
    /// is one.
    fn path_change(&mut self, now: Time) -> Option<PathChange>;
    /// Keeps the current provider because the change failed: the attempt to connect continues with
    /// it.
    fn keep_path(&mut self);
    /// Moves the controllers to a new engine on another device, which is returned; this one is left
    /// empty.
    fn moved_to(&mut self, device: AnyDevice) -> Result<Box<dyn ErasedEngine>, Error>;
    /// Returns whether there are no controllers and no connections.
    fn is_quiet(&self) -> bool;
    /// Queues a command, which is sent at the next turn.
    fn raw(&mut self, controller: ControllerKey, raw: Raw);
    /// Returns the count of changes if it differs from `seen`; else `None`, and `promise` is
    /// resolved at the next change.
    fn await_change(
        &mut self,
        controller: ControllerKey,
        kind: ChangeKind,
        seen: u64,
        promise: Promise<u64>,
    ) -> Result<Option<u64>, Error>;
    /// Returns the error of all commands to a namespace that is no longer the one that was opened.
    fn namespace_change(&self, controller: ControllerKey, namespace: NamespaceKey)
    -> Option<Error>;
    /// Returns the name of a namespace that the target reported last, if it has one.
    fn namespace_name(&self, controller: ControllerKey, namespace: NamespaceKey) -> Option<String>;
    /// Returns the number of attempts to connect the controller so far, which identifies the
    /// connection: what was read over one connection may not hold for another.
    fn epoch(&self, controller: ControllerKey) -> Result<u64, Error>;
    /// Registers an identified namespace; `None` if it was identified over another connection.
    fn attach(
        &mut self,
        controller: ControllerKey,
        epoch: u64,
        identity: NamespaceIdentity,
        outbox: &mut Outbox,
    ) -> Result<Option<Attachment>, Error>;
    /// Releases one handle of a namespace.
    fn detach(&mut self, controller: ControllerKey, namespace: NamespaceKey, outbox: &mut Outbox);
    /// Retries the writes and commands that waited for other writes of this host.
    fn resume_writes(&mut self);
    /// Queues a range, for which its ring has a place, until the next turn.
    fn submit(&mut self, submission: Submission, outbox: &mut Outbox);
    /// Sends queued commands without polling for completions or events. Returns when the next turn
    /// is due.
    fn launch(&mut self, now: Time, outbox: &mut Outbox) -> Option<Time>;
    /// Abandons the ranges of a ring that was dropped: its reads send no further command, and its
    /// writes are not moved to other paths.
    fn abandon(&mut self, ring: RingKey, outbox: &mut Outbox);
    /// Queues the ranges of a plan until the next turn.
    fn submit_run(&mut self, run: PlanRun);
    /// Returns the load of a controller, by which replicas and paths are selected, at `now` or at
    /// the last turn.
    fn load(&self, controller: ControllerKey, now: Option<Time>) -> TargetLoad;
    /// Returns the loads of all controllers, by their keys.
    fn loads(&self, now: Time) -> Vec<(ControllerKey, TargetLoad)>;
    /// Records that a range tests a controller whose circuit breaker is open.
    fn begin_probe(&mut self, controller: ControllerKey, now: Option<Time>);
    /// Removes and returns the ranges of plans that wait for controllers without a connection and
    /// for which `elsewhere` finds another replica. Its last argument is whether the range had been
    /// started.
    fn give_away(
        &mut self,
        elsewhere: &mut dyn FnMut(PlanKey, u32, bool) -> bool,
    ) -> Vec<(PlanKey, u32)>;
    /// Removes and returns the ranges of rings that wait for controllers without a connection and
    /// for which `elsewhere` finds another path.
    fn give_away_ring_ranges(&mut self, elsewhere: &dyn Fn(&RangeOp) -> bool) -> Vec<RangeOp>;
    /// Queues a range that was moved here from another path, until the next turn.
    fn adopt_range(&mut self, op: RangeOp, outbox: &mut Outbox);
    /// Cancels the ranges of a plan, which send no further command; returns how many have ended by
    /// that.
    fn cancel_plan(&mut self, plan: PlanKey, outbox: &mut Outbox) -> usize;
    /// Returns the registration scopes of all controllers.
    fn scopes(&self) -> Vec<Arc<dyn ErasedScope>>;
    /// Returns the limits of a controller on its current connection.
    fn limits(&self, controller: ControllerKey) -> Result<ControllerLimits, Error>;
    /// Returns whether the provider has descriptors that wake a thread; a simulated one has none.
    fn has_fds(&self) -> bool {
        !self.fds().is_empty()
    }
    /// Enables wake-ups through the descriptors.
    fn arm(&mut self);
    /// Clears a wake-up, once a descriptor was readable.
    fn acknowledge(&mut self);
    /// Returns descriptors that become readable when there is work.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
    /// Returns the counters of the engine since it was created.
    fn counters(&self) -> HostCounters;
    /// Returns the counters of the provider.
    fn group_stats(&self) -> GroupStats;
}

/// Result of [`ErasedEngine::connect`]: a controller whose connection is not established yet.
pub(crate) struct Connecting {
    /// Key of the controller in its engine.
    pub(crate) controller: ControllerKey,
    /// Scope in which memory is registered that the target may access.
    pub(crate) scope: Arc<CurrentScope>,
}

/// A namespace that was registered with a controller.
pub(crate) struct Attachment {
    /// Key of the namespace in its controller.
    pub(crate) number: NamespaceKey,
    /// State of the access to it over this controller.
    pub(crate) access: PathAccess,
}

/// The engine of a device: its controllers, queues and ranges.
pub(crate) struct HostEngine<P: Provider> {
    pub(crate) host: HostIdentity,
    pub(crate) cm: P::Cm,
    pub(crate) group: P::Group,
    pub(crate) device_events: DeviceEvents,
    pub(crate) queues: Arena<QueueKey, HostQueue<P, Task>>,
    pub(crate) controllers: Arena<ControllerKey, ControllerState<P>>,
    pub(crate) ready_list: ReadyList,
    pub(crate) connections: Connections,
    pub(crate) fences: Vec<Fence>,
    pub(crate) ops: Arena<RangeKey, RangeOp>,
    pub(crate) runs: Arena<RunKey, PlanRun>,
    pub(crate) counters: HostCounters,
    /// Time of the last turn or launch.
    pub(crate) clock: Time,
    /// Work requests were pushed since the last flush.
    pub(crate) pushed: bool,
    /// Requests since the last turn; the next one sets their times.
    pub(crate) fresh: Fresh,
    /// Time before which no range expires.
    pub(crate) next_expiry: Option<Time>,
    /// When to poll for connection events again, unless a wake-up comes earlier.
    look_at_connections: Time,
    wcs: Vec<Wc>,
    /// Selection of the provider; only for a target on this machine.
    pub(crate) path: Option<PathChoice>,
    pub(crate) device: P::Device,
}

/// Requests that were queued between two turns, when the engine does not know the time.
#[derive(Default)]
pub(crate) struct Fresh {
    pub(crate) ops: Vec<RangeKey>,
    pub(crate) runs: Vec<RunKey>,
    pub(crate) raws: Vec<(ControllerKey, Raw)>,
    closings: Vec<ControllerKey>,
}

impl<P: Provider> HostEngine<P> {
    /// Most completions that are taken before new commands are sent.
    const BATCH: usize = 64;
    /// Fewest completions in a batch, enough to be worth the system calls that send the next
    /// commands.
    const BATCH_WORTH_A_CALL: usize = 16;
    /// Most rounds of a turn, so that a busy engine does not delay the others.
    const ROUNDS: usize = 16;
    /// Pause between polls for connection events while no thread sleeps on their descriptor. Twice
    /// as long, a busy engine would process them up to 1 ms later.
    const LOOK_EVERY: Duration = Duration::from_millis(1);

    pub(crate) fn new(device: P::Device, host: HostIdentity) -> io::Result<Self> {
        let config = GroupConfig { completions: 64 * 1024, queue_pairs: 64, completion_vector: 0 };
        Ok(Self {
            host,
            cm: device.connection_manager()?,
            group: device.group(&config)?,
            device_events: DeviceEvents::of::<P>(&device)?,
            queues: Arena::default(),
            controllers: Arena::default(),
            ready_list: ReadyList::default(),
            connections: Connections::default(),
            fences: Vec::new(),
            ops: Arena::default(),
            runs: Arena::default(),
            clock: Time::ZERO,
            counters: HostCounters::default(),
            pushed: false,
            fresh: Fresh::default(),
            next_expiry: None,
            look_at_connections: Time::ZERO,
            wcs: vec![Wc::default(); Self::BATCH],
            path: None,
            device,
        })
    }

    /// Returns the engine with a selection of its provider between connections, for a target on
    /// this machine.
    pub(crate) fn for_target(mut self, choice: Option<PathChoice>) -> Self {
        self.path = choice;
        self
    }

    /// Sets the times of the requests that were queued since the last turn.
    fn take_fresh(&mut self, now: Time, outbox: &mut Outbox) {
        self.clock = now;
        let mut fresh = std::mem::take(&mut self.fresh);
        for op in fresh.ops.drain(..) {
            self.start_range(now, op, outbox);
        }
        for run in fresh.runs.drain(..) {
            self.start_run(now, run, outbox);
        }
        for (controller, raw) in fresh.raws.drain(..) {
            self.submit_raw(now, controller, raw, outbox);
        }
        for controller in fresh.closings.drain(..) {
            self.start_closing(now, controller, outbox);
        }
        // Keeps the room of the vectors.
        self.fresh = fresh;
    }

    fn round(&mut self, now: Time, outbox: &mut Outbox) -> bool {
        let mut worked = self.drain_device_events(now, outbox);
        worked |= self.drain_connection_events(now, outbox);
        worked |= self.drain_completions(now, outbox);
        self.run_timers(now, outbox);
        self.issue(now, outbox);
        worked
    }

    /// Sends commands of the controllers that have become ready.
    fn issue(&mut self, now: Time, outbox: &mut Outbox) {
        while let Some(controller) = self.ready_list.next_stirred() {
            if self.controllers.contains(controller) {
                self.issue_waiting(now, controller, outbox);
            }
            let deadline = self.controllers.get(controller).and_then(ControllerState::deadline);
            self.ready_list.set_timer(controller, deadline);
        }
        // A waiting caller whose result is ready may submit more immediately, which is sent in the
        // same flush.
        if self.pushed && !outbox.has_deferred() {
            // Responses cannot arrive before the flush returns, so no further round is needed.
            self.pushed = false;
            self.group.flush(now);
        }
    }

    /// Polls for connection events if some may have come, since that is a system call with some
    /// providers.
    fn drain_connection_events(&mut self, now: Time, outbox: &mut Outbox) -> bool {
        let due = self.cm.deadline().is_some_and(|time| time <= now);
        if self.connections.are_idle() && !due && now < self.look_at_connections {
            return false;
        }
        for round in 0..Self::BATCH {
            match self.cm.poll(now) {
                Some(event) => self.handle_connection_event(now, event, outbox),
                None => {
                    let pause =
                        if self.cm.fd().is_some() { Self::LOOK_EVERY } else { Duration::ZERO };
                    self.look_at_connections = now + pause;
                    return round > 0;
                }
            }
        }
        true
    }

    fn handle_connection_event(&mut self, now: Time, event: CmEvent, outbox: &mut Outbox) {
        let conn = match event {
            CmEvent::Resolved { conn }
            | CmEvent::Established { conn, .. }
            | CmEvent::Rejected { conn, .. }
            | CmEvent::ConnectFailed { conn, .. }
            | CmEvent::Disconnected { conn, .. }
            | CmEvent::DeviceRemoved { conn } => conn,
            _ => return,
        };
        let Some(known) = self.connections.get(conn) else { return };
        if let Some(controller) = known.controller() {
            self.ready_list.mark_ready(controller);
        }
        match (known, event) {
            (ConnectionRole::Opening { controller, qid }, CmEvent::Resolved { .. }) => {
                self.handle_resolved(now, controller, qid, conn, outbox);
            }
            (ConnectionRole::Opening { controller, .. }, CmEvent::Established { params, .. }) => {
                self.connections.insert(conn, ConnectionRole::Open { controller });
                self.handle_established(now, controller, conn, &params, outbox);
            }
            (_, CmEvent::Resolved { .. } | CmEvent::Established { .. }) => {}
            (known, end) => {
                if let Some(controller) = known.controller() {
                    self.end_association(now, controller, end_cause(&end), outbox);
                }
                // These events are the last of a connection.
                self.connections.remove(conn);
                self.cm.close(conn);
                if let CmEvent::Disconnected { confirmed: true, .. } = end {
                    self.confirm_end(now, conn);
                }
            }
        }
    }

    fn drain_completions(&mut self, now: Time, outbox: &mut Outbox) -> bool {
        let mut wcs = std::mem::take(&mut self.wcs);
        let count = self.group.poll(now, &mut wcs[..self.batch()]);
        for wc in &wcs[..count] {
            self.handle_completion(now, wc, outbox);
        }
        self.wcs = wcs;
        count > 0
    }

    /// Returns how many completions to take before the next commands are sent: a quarter of the
    /// ranges in progress, so that the others keep the target and both directions of the network
    /// busy.
    fn batch(&self) -> usize {
        (self.ops.len() / 4).clamp(Self::BATCH_WORTH_A_CALL, Self::BATCH)
    }

    fn handle_completion(&mut self, now: Time, wc: &Wc, outbox: &mut Outbox) {
        let WrId { queue: key, kind, index } = WrId::unpack(wc.wr_id);
        // The queue was removed if an earlier completion of this batch ended its association.
        let Some(queue) = self.queues.get_mut(key) else { return };
        if self.group.qpn(queue.qp()) != wc.qpn {
            return;
        }
        let (controller, qid) = (queue.controller(), queue.qid());
        self.ready_list.mark_ready(controller);
        if !wc.is_success() {
            let error =
                ErrorKind::ConnectionLost(crate::engine::association_end::reason(wc.status)).into();
            return self.end_association(now, controller, error, outbox);
        }
        let finished = match kind {
            WrKind::Receive => {
                self.pushed = true;
                self.controllers[controller].keep_alive.last_answer = now;
                match queue.received(&mut self.group, index, wc.byte_len, wc.invalidated()) {
                    Ok(finished) => finished,
                    Err(violation) => {
                        self.counters.protocol_violations += 1;
                        let error = ErrorKind::Protocol(violation.0).into();
                        return self.end_association(now, controller, error, outbox);
                    }
                }
            }
            WrKind::Send => queue.sent(index),
            WrKind::Invalidate => queue.invalidated(index),
            WrKind::Bind => None,
        };
        if let Some(FinishedCommand { work, cqe }) = finished {
            if let (Task::Piece(piece), Some(trace)) = (&work, &mut outbox.trace) {
                self.trace_piece(now, (controller, qid), piece, &cqe, trace);
            }
            self.handle_finished(now, controller, work, cqe, outbox);
        }
    }

    fn handle_finished(
        &mut self,
        now: Time,
        controller: ControllerKey,
        task: Task,
        cqe: nvme_proto::Cqe,
        outbox: &mut Outbox,
    ) {
        match task {
            Task::Piece(piece) => {
                self.finish_piece(now, controller, piece, cqe.status(), outbox);
            }
            Task::Raw { promise, chunk, to_host, namespace, .. } => {
                let buffer = (chunk, to_host);
                self.finish_raw(controller, promise, buffer, namespace, &cqe, outbox);
            }
            Task::Opening => self.advance_opening(now, controller, &cqe, outbox),
            Task::KeepAlive => self.finish_keep_alive(now, controller, cqe.status(), outbox),
            Task::Check(task) => self.finish_check(now, controller, task, &cqe, outbox),
            Task::EventConfig => self.await_event(now, controller, &cqe, outbox),
            Task::AsyncEvent => self.take_event(now, controller, &cqe, outbox),
            Task::Abort => {}
            Task::Shutdown => self.end_closing(now, controller, outbox),
        }
    }

    fn finish_keep_alive(
        &mut self,
        now: Time,
        controller: ControllerKey,
        status: Status,
        outbox: &mut Outbox,
    ) {
        let controller_state = &mut self.controllers[controller];
        controller_state.keep_alive.sent = None;
        if controller_state.keep_alive.watch.is_some() {
            let silence = controller_state.options.silence();
            controller_state.keep_alive.watch = silence.map(|silence| now + silence / 2);
        }
        if !status.is_success() {
            let error = ErrorKind::Status(status).into();
            self.end_association(now, controller, error, outbox);
        }
    }

    fn deadline(&self) -> Option<Time> {
        debug_assert!(
            self.controllers.iter().all(|(key, it)| self.ready_list.timer(key) == it.deadline()),
            "nothing changes a deadline without stirring its controller"
        );
        let own =
            earliest(self.next_expiry, earliest(self.ready_list.deadline(), self.next_fence()));
        earliest(own, earliest(self.group.deadline(), self.cm.deadline()))
    }
}

/// Returns the error for an event that ends a connection.
fn end_cause(event: &CmEvent) -> Error {
    match event {
        CmEvent::Rejected { reason, private_data, .. } => {
            crate::engine::rejection::rejection(*reason, private_data.as_slice())
        }
        CmEvent::ConnectFailed { failure, .. } => {
            ErrorKind::Unreachable(UnreachableCause::of(*failure)).into()
        }
        CmEvent::DeviceRemoved { .. } => {
            ErrorKind::ConnectionLost("the RDMA device was removed").into()
        }
        _ => ErrorKind::ConnectionLost("the target disconnected").into(),
    }
}

impl<P: Provider> ErasedEngine for HostEngine<P> {
    fn turn(&mut self, now: Time, outbox: &mut Outbox) -> NextTurn {
        self.take_fresh(now, outbox);
        self.issue(now, outbox);
        for _ in 0..Self::ROUNDS {
            if !self.round(now, outbox) {
                return match self.deadline() {
                    Some(deadline) if deadline <= now => NextTurn::Busy,
                    deadline => NextTurn::SleepUntil(deadline),
                };
            }
            if outbox.has_deferred() {
                // A caller waits for a result that is ready.
                return NextTurn::Busy;
            }
        }
        NextTurn::Busy
    }

    fn connect(
        &mut self,
        target: Arc<SubsystemAddress>,
        options: ControllerOptions,
        opened: Promise<ControllerLimits>,
    ) -> Result<Connecting, Error> {
        if self.connections.is_empty() {
            self.reopen_path();
        }
        let scope = Arc::new(RegistrationScope::new(&self.device)?);
        let current_scope = Arc::new(CurrentScope::new(Arc::clone(&scope) as _));
        let bounce = BouncePool::new(scope.device(), ControllerState::<P>::CHUNKS)?;
        let retries = Retries::new(&self.host.id, self.controllers.next_key().index());
        let controller = self.controllers.insert(ControllerState {
            target,
            options,
            phase: ControllerPhase::Resting(Time::ZERO),
            epoch: 0,
            queues: Vec::new(),
            next_queue: 0,
            limits: ControllerLimits::NONE,
            notices: Default::default(),
            ana: None,
            cc: Default::default(),
            bounce,
            scope,
            current_scope: Arc::clone(&current_scope),
            keep_alive: KeepAlive::default(),
            breaker: Default::default(),
            retries,
            outage: None,
            first: Some(FirstConnect::new(opened)),
            namespaces: Arena::default(),
            checks: Default::default(),
            log_changes: Default::default(),
            namespace_changes: Default::default(),
            ready: Default::default(),
            runs: Default::default(),
            turns: Default::default(),
            unissued_bytes: 0,
            in_flight: Default::default(),
            background: Default::default(),
            modified: Default::default(),
            blocked: Default::default(),
            delayed: Vec::new(),
            raw: Default::default(),
            unchecked: Default::default(),
            raw_expiry: None,
            closing: false,
        });
        self.ready_list.mark_ready(controller);
        Ok(Connecting { controller, scope: current_scope })
    }

    fn retarget(&mut self, target: NearTarget) -> bool {
        self.retarget(target)
    }

    fn path_change(&mut self, now: Time) -> Option<PathChange> {
        self.path_change(now)
    }

    fn keep_path(&mut self) {
        self.keep_path();
    }

    fn moved_to(&mut self, device: AnyDevice) -> Result<Box<dyn ErasedEngine>, Error> {
        self.moved_to(device)
    }

    fn close(&mut self, controller: ControllerKey) {
        self.fresh.closings.push(controller);
    }

    fn is_quiet(&self) -> bool {
        self.connections.is_empty() && self.controllers.is_empty()
    }

    fn raw(&mut self, controller: ControllerKey, raw: Raw) {
        self.fresh.raws.push((controller, raw));
    }

    fn await_change(
        &mut self,
        controller: ControllerKey,
        kind: ChangeKind,
        seen: u64,
        promise: Promise<u64>,
    ) -> Result<Option<u64>, Error> {
        let controller = self.controllers.get_mut(controller).ok_or(ErrorKind::Closed)?;
        match (kind, controller.refusal(), &controller.phase) {
            (ChangeKind::DiscoveryLog, Some(error), _) => Err(error.clone()),
            (ChangeKind::DiscoveryLog, None, _) => Ok(controller.log_changes.wait(seen, promise)),
            (ChangeKind::Namespaces, _, ControllerPhase::Dead(error)) => Err(error.clone()),
            (ChangeKind::Namespaces, ..) => Ok(controller.namespace_changes.wait(seen, promise)),
        }
    }

    fn namespace_change(
        &self,
        controller: ControllerKey,
        namespace: NamespaceKey,
    ) -> Option<Error> {
        self.controllers.get(controller)?.namespaces.get(namespace)?.gone.clone()
    }

    fn namespace_name(&self, controller: ControllerKey, namespace: NamespaceKey) -> Option<String> {
        self.controllers.get(controller)?.namespaces.get(namespace)?.identity.name.clone()
    }

    fn epoch(&self, controller: ControllerKey) -> Result<u64, Error> {
        Ok(self.controllers.get(controller).ok_or(ErrorKind::Closed)?.epoch)
    }

    fn attach(
        &mut self,
        key: ControllerKey,
        epoch: u64,
        identity: NamespaceIdentity,
        outbox: &mut Outbox,
    ) -> Result<Option<Attachment>, Error> {
        let controller = self.controllers.get_mut(key).ok_or(ErrorKind::Closed)?;
        if controller.epoch != epoch {
            return Ok(None);
        }
        let known = controller
            .namespaces
            .iter_mut()
            .find(|(_, attached)| attached.nsid == identity.nsid && attached.gone.is_none());
        if let Some((number, attached)) = known
            && attached.identity.difference(&identity).is_none()
        {
            attached.holders += 1;
            return Ok(Some(Attachment { number, access: attached.access.clone() }));
        }
        let geometry = identity.geometry(controller.limits.max_transfer_bytes)?;
        let nsid = identity.nsid;
        let ana = controller.ana.as_ref();
        let state = ana.map_or(AnaState::OPTIMIZED, |ana| ana.state(identity.ana_group));
        let access = PathAccess::new(state);
        let attached = Attached {
            nsid,
            access: access.clone(),
            identity,
            geometry,
            holders: 1,
            gone: None,
            check: Default::default(),
            waiting: Default::default(),
            written: outbox.writes.open(controller.target.nqn, nsid),
        };
        let number = controller.namespaces.insert(attached);
        // The log page shows the state that ranges wait for.
        controller.checks.reads_ana |= access.obstacle().is_some();
        self.ready_list.mark_ready(key);
        Ok(Some(Attachment { number, access }))
    }

    fn detach(&mut self, controller: ControllerKey, namespace: NamespaceKey, outbox: &mut Outbox) {
        let Some(known) = self.controllers.get_mut(controller) else { return };
        if let Some(attached) = known.namespaces.get_mut(namespace) {
            attached.holders -= 1;
        }
        self.sweep_namespaces(controller, outbox);
    }

    fn resume_writes(&mut self) {
        for (key, controller) in self.controllers.iter_mut() {
            if controller.resume_writes(&self.ops) {
                self.ready_list.mark_ready(key);
            }
        }
    }

    fn submit(&mut self, submission: Submission, outbox: &mut Outbox) {
        self.submit_range(submission, outbox);
    }

    fn launch(&mut self, now: Time, outbox: &mut Outbox) -> Option<Time> {
        self.take_fresh(now, outbox);
        self.issue(now, outbox);
        self.deadline()
    }

    fn abandon(&mut self, ring: RingKey, outbox: &mut Outbox) {
        self.abandon_ring(ring, outbox);
    }

    fn submit_run(&mut self, run: PlanRun) {
        let run = self.runs.insert(run);
        self.fresh.runs.push(run);
    }

    fn load(&self, controller: ControllerKey, now: Option<Time>) -> TargetLoad {
        let now = now.unwrap_or(self.clock);
        self.controllers.get(controller).map_or(TargetLoad::Away, |known| known.load(now))
    }

    fn loads(&self, now: Time) -> Vec<(ControllerKey, TargetLoad)> {
        self.controllers.iter().map(|(key, controller)| (key, controller.load(now))).collect()
    }

    fn begin_probe(&mut self, controller: ControllerKey, now: Option<Time>) {
        if let Some(controller) = self.controllers.get_mut(controller) {
            controller.breaker.begin_probe(now.unwrap_or(self.clock));
        }
    }

    fn give_away(
        &mut self,
        elsewhere: &mut dyn FnMut(PlanKey, u32, bool) -> bool,
    ) -> Vec<(PlanKey, u32)> {
        let mut given = self.give_away_ops(elsewhere);
        self.give_away_runs(elsewhere, &mut given);
        given
    }

    fn give_away_ring_ranges(&mut self, elsewhere: &dyn Fn(&RangeOp) -> bool) -> Vec<RangeOp> {
        self.give_away_ring_ranges(elsewhere)
    }

    fn adopt_range(&mut self, op: RangeOp, outbox: &mut Outbox) {
        self.adopt_range(op, outbox);
    }

    fn cancel_plan(&mut self, plan: PlanKey, outbox: &mut Outbox) -> usize {
        self.cancel_runs(plan, outbox) + self.abandon_plan(plan, outbox)
    }

    fn scopes(&self) -> Vec<Arc<dyn ErasedScope>> {
        let controllers = self.controllers.iter();
        controllers.map(|(_, controller)| Arc::clone(&controller.scope) as _).collect()
    }

    fn limits(&self, controller: ControllerKey) -> Result<ControllerLimits, Error> {
        let controller = self.controllers.get(controller).ok_or(ErrorKind::Closed)?;
        match controller.refusal() {
            Some(error) => Err(error.clone()),
            None => Ok(controller.limits),
        }
    }

    fn arm(&mut self) {
        // Drivers always turn between this call and their sleep.
        self.group.arm(WakeFor::Everything);
    }

    fn acknowledge(&mut self) {
        self.group.acknowledge_wake();
        self.device_events.woken();
        self.look_at_connections = Time::ZERO;
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.group.fd().into_iter().chain(self.cm.fd()).chain(self.device_events.fd()).collect()
    }

    fn counters(&self) -> HostCounters {
        self.counters
    }

    fn group_stats(&self) -> GroupStats {
        self.group.stats()
    }
}

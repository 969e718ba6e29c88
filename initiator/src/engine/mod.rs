//! The state machine of one device: everything that moves, driven by [`ErasedEngine::turn`].

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
use slab::Slab;

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
use crate::engine::results::{Outbox, PlanKey, RingKey};
use crate::engine::same_machine::{AnyDevice, NearTarget, PathChange, PathChoice};
use crate::engine::shard_routes::TargetLoad;
use crate::memory::bounce::BouncePool;
use crate::memory::region::{CurrentScope, ErasedScope, RegistrationScope};
use crate::types::counters::HostCounters;
use crate::types::error::{Error, ErrorKind, SubsystemAddress, UnreachableCause};
use crate::types::options::ControllerOptions;

/// The result of a turn: whether more is ready, else when to turn again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextTurn {
    /// More is ready: turn again immediately.
    Busy,
    /// Nothing before this time, unless something wakes the host earlier.
    SleepUntil(Option<Time>),
}

impl NextTurn {
    /// The earlier of both.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::SleepUntil(a), Self::SleepUntil(b)) => Self::SleepUntil(earliest(a, b)),
            _ => Self::Busy,
        }
    }
}

/// The earlier of two times, where there are any.
pub(crate) fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The identity of a host, sent with each Connect command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostIdentity {
    pub(crate) nqn: HostNqn,
    pub(crate) id: HostId,
}

/// A [`HostEngine`] of some provider.
pub(crate) trait ErasedEngine: Send {
    /// Does all that is ready, never blocks.
    fn turn(&mut self, now: Time, outbox: &mut Outbox) -> NextTurn;
    /// Connects from the next turn on; `opened` is kept when the controller is usable or cannot be
    /// reached.
    fn connect(
        &mut self,
        target: Arc<SubsystemAddress>,
        options: ControllerOptions,
        opened: Promise<ControllerLimits>,
    ) -> Result<Connecting, Error>;
    /// Shuts a controller down from the next turn on, and forgets it.
    fn close(&mut self, controller: usize);
    /// Makes an engine without controllers serve another target on this machine; false if it
    /// cannot.
    fn retarget(&mut self, target: NearTarget) -> bool;
    /// The change of the provider that an attempt to connect waits for, if it asked for one.
    fn path_change(&mut self, now: Time) -> Option<PathChange>;
    /// Keeps the provider, since the change cannot be made: the attempt continues without it.
    fn keep_path(&mut self);
    /// Moves the engine to another device, and leaves this one empty.
    fn moved_to(&mut self, device: AnyDevice) -> Result<Box<dyn ErasedEngine>, Error>;
    /// Whether nothing is connected or about to be.
    fn is_quiet(&self) -> bool;
    /// Queues a command for the next turn.
    fn raw(&mut self, controller: usize, raw: Raw);
    /// How often something has changed, if that is not as often as the caller has seen; else
    /// `promise` is kept at the next change.
    fn await_change(
        &mut self,
        controller: usize,
        kind: ChangeKind,
        seen: u64,
        promise: Promise<u64>,
    ) -> Result<Option<u64>, Error>;
    /// Why a namespace that was opened is not used any longer, if it is not what it was.
    fn namespace_change(&self, controller: usize, namespace: usize) -> Option<Error>;
    /// The name of a namespace as the target told it last, if it told one.
    fn namespace_name(&self, controller: usize, namespace: usize) -> Option<String>;
    /// How often the controller was connected: what was learned over one connection may not hold
    /// for another.
    fn epoch(&self, controller: usize) -> Result<u64, Error>;
    /// Makes a namespace known; `None` if it was identified over another connection.
    fn attach(
        &mut self,
        controller: usize,
        epoch: u64,
        identity: NamespaceIdentity,
        outbox: &mut Outbox,
    ) -> Result<Option<Attachment>, Error>;
    /// One handle of a namespace less.
    fn detach(&mut self, controller: usize, namespace: usize, outbox: &mut Outbox);
    /// Writes and commands that waited for writes of this host are tried again.
    fn resume_writes(&mut self);
    /// Queues a range, which has a place in its ring, for the next turn.
    fn submit(&mut self, submission: Submission, outbox: &mut Outbox);
    /// Issues what was queued, without looking for anything else; says when to turn next.
    fn launch(&mut self, now: Time, outbox: &mut Outbox) -> Option<Time>;
    /// Abandons the ranges of a ring, which no caller waits for: its reads issue nothing further,
    /// and its writes stay on their paths.
    fn abandon(&mut self, ring: RingKey, outbox: &mut Outbox);
    /// Queues ranges of a plan for the next turn.
    fn submit_run(&mut self, run: PlanRun);
    /// The load of a controller, for ranges that have a choice; without a time, as of the last
    /// turn.
    fn load(&self, controller: usize, now: Option<Time>) -> TargetLoad;
    /// The loads of all controllers, by their numbers.
    fn loads(&self, now: Time) -> Vec<(usize, TargetLoad)>;
    /// A range is about to find out whether the breaker of a controller can be closed.
    fn begin_probe(&mut self, controller: usize, now: Option<Time>);
    /// Ranges of plans that wait for controllers without a connection, and for which `elsewhere`
    /// finds another: it is told whether they were begun. They leave this engine.
    fn give_away(
        &mut self,
        elsewhere: &mut dyn FnMut(PlanKey, u32, bool) -> bool,
    ) -> Vec<(PlanKey, u32)>;
    /// Ranges of rings that wait for controllers without a connection, and for which `elsewhere`
    /// finds another path. They leave this engine.
    fn give_away_ring_ranges(&mut self, elsewhere: &dyn Fn(&RangeOp) -> bool) -> Vec<RangeOp>;
    /// Takes over a range that was on another path, for the next turn.
    fn adopt_range(&mut self, op: RangeOp, outbox: &mut Outbox);
    /// Cancels the ranges of a plan, which issue nothing further; returns how many have ended
    /// thereby.
    fn cancel_plan(&mut self, plan: PlanKey, outbox: &mut Outbox) -> usize;
    /// Where memory is registered, of every controller.
    fn scopes(&self) -> Vec<Arc<dyn ErasedScope>>;
    /// The limits of a controller's present connection.
    fn limits(&self, controller: usize) -> Result<ControllerLimits, Error>;
    /// Whether the provider can wake us at all; a simulated one cannot.
    fn has_fds(&self) -> bool {
        !self.fds().is_empty()
    }
    /// Asks for wake-ups on the descriptors.
    fn arm(&mut self);
    /// Consumes a wake-up, once a descriptor was readable.
    fn acknowledge(&mut self);
    /// Descriptors that tell of things to do.
    fn fds(&self) -> Vec<BorrowedFd<'_>>;
    /// Counters of the engine since it was made.
    fn counters(&self) -> HostCounters;
    /// Counters of the provider.
    fn group_stats(&self) -> GroupStats;
}

/// A controller that is being connected.
pub(crate) struct Connecting {
    /// Key of the controller in its engine.
    pub(crate) controller: usize,
    /// Where memory is registered that its targets may reach.
    pub(crate) scope: Arc<CurrentScope>,
}

/// A namespace that was made known.
pub(crate) struct Attachment {
    /// Number of the namespace in its controller.
    pub(crate) number: usize,
    /// How it can be reached over the controller.
    pub(crate) access: PathAccess,
}

/// A device with its connections.
pub(crate) struct HostEngine<P: Provider> {
    pub(crate) host: HostIdentity,
    pub(crate) cm: P::Cm,
    pub(crate) group: P::Group,
    pub(crate) device_events: DeviceEvents,
    pub(crate) queues: Slab<HostQueue<P, Task>>,
    pub(crate) controllers: Slab<ControllerState<P>>,
    pub(crate) ready_list: ReadyList,
    pub(crate) connections: Connections,
    pub(crate) fences: Vec<Fence>,
    pub(crate) ops: Slab<RangeOp>,
    pub(crate) runs: Slab<PlanRun>,
    pub(crate) counters: HostCounters,
    /// The time of the last turn or launch.
    pub(crate) clock: Time,
    /// Something was pushed since the last flush.
    pub(crate) pushed: bool,
    /// Requests that came in since the last turn: the next one knows the time.
    pub(crate) fresh: Fresh,
    /// No range expires before this time.
    pub(crate) next_expiry: Option<Time>,
    /// When connection events are looked for next, unless something hints at one earlier.
    look_at_connections: Time,
    wcs: Vec<Wc>,
    /// Where it is for a target on this machine: how its provider is chosen.
    pub(crate) path: Option<PathChoice>,
    pub(crate) device: P::Device,
}

/// Requests that came in between two turns.
#[derive(Default)]
pub(crate) struct Fresh {
    pub(crate) ops: Vec<usize>,
    pub(crate) runs: Vec<usize>,
    pub(crate) raws: Vec<(usize, Raw)>,
    closings: Vec<usize>,
}

impl<P: Provider> HostEngine<P> {
    /// The most completions taken at a time, before new commands are sent.
    const BATCH: usize = 64;
    /// The smallest batch of completions: it is worth the system calls that its successors leave
    /// with.
    const BATCH_WORTH_A_CALL: usize = 16;
    /// Rounds of a turn, so that one busy engine does not keep the others waiting.
    const ROUNDS: usize = 16;
    /// How often connection events are looked for while nothing sleeps until they come. Doubled, an
    /// engine that never sleeps notices them up to 1 ms later.
    const LOOK_EVERY: Duration = Duration::from_millis(1);

    pub(crate) fn new(device: P::Device, host: HostIdentity) -> io::Result<Self> {
        let config = GroupConfig { completions: 64 * 1024, queue_pairs: 64, completion_vector: 0 };
        Ok(Self {
            host,
            cm: device.connection_manager()?,
            group: device.group(&config)?,
            device_events: DeviceEvents::of::<P>(&device)?,
            queues: Slab::new(),
            controllers: Slab::new(),
            ready_list: ReadyList::default(),
            connections: Connections::default(),
            fences: Vec::new(),
            ops: Slab::new(),
            runs: Slab::new(),
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

    /// The engine of a target on this machine, which may change its provider between connections.
    pub(crate) fn for_target(mut self, choice: Option<PathChoice>) -> Self {
        self.path = choice;
        self
    }

    /// Starts the clock for what came in since the last turn.
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

    /// Hands over what waits for a queue.
    fn issue(&mut self, now: Time, outbox: &mut Outbox) {
        while let Some(controller) = self.ready_list.next_stirred() {
            if self.controllers.contains(controller) {
                self.issue_waiting(now, controller, outbox);
            }
            let deadline = self.controllers.get(controller).and_then(ControllerState::deadline);
            self.ready_list.set_timer(controller, deadline);
        }
        // A caller that waits for a result that is there may submit more right away, which leaves
        // with the rest.
        if self.pushed && !outbox.has_deferred() {
            // The responses are not there yet: they need no other round.
            self.pushed = false;
            self.group.flush(now);
        }
    }

    /// Looks for connection events where some may have come; looking is a system call with some
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
                // Nothing follows these events.
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

    /// How many completions to take now. Their successors leave before the next are looked at, so
    /// that the target stays busy: a quarter of what is in progress leaves work for the way there,
    /// for the target and for the way back.
    fn batch(&self) -> usize {
        (self.ops.len() / 4).clamp(Self::BATCH_WORTH_A_CALL, Self::BATCH)
    }

    fn handle_completion(&mut self, now: Time, wc: &Wc, outbox: &mut Outbox) {
        let WrId { queue: key, kind, index } = WrId::unpack(wc.wr_id);
        // A queue that an earlier completion of this batch brought down is gone.
        let Some(queue) = self.queues.get_mut(key as usize) else { return };
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
        controller: usize,
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
        controller: usize,
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

/// The error of an event that ends a connection.
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
                // A caller waits for a result that is there.
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
        let retries = Retries::new(&self.host.id, self.controllers.vacant_key());
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
            namespaces: Slab::new(),
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

    fn close(&mut self, controller: usize) {
        self.fresh.closings.push(controller);
    }

    fn is_quiet(&self) -> bool {
        self.connections.is_empty() && self.controllers.is_empty()
    }

    fn raw(&mut self, controller: usize, raw: Raw) {
        self.fresh.raws.push((controller, raw));
    }

    fn await_change(
        &mut self,
        controller: usize,
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

    fn namespace_change(&self, controller: usize, namespace: usize) -> Option<Error> {
        self.controllers.get(controller)?.namespaces.get(namespace)?.gone.clone()
    }

    fn namespace_name(&self, controller: usize, namespace: usize) -> Option<String> {
        self.controllers.get(controller)?.namespaces.get(namespace)?.identity.name.clone()
    }

    fn epoch(&self, controller: usize) -> Result<u64, Error> {
        Ok(self.controllers.get(controller).ok_or(ErrorKind::Closed)?.epoch)
    }

    fn attach(
        &mut self,
        key: usize,
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
        // Ranges find out what it waits for.
        controller.checks.reads_ana |= access.obstacle().is_some();
        self.ready_list.mark_ready(key);
        Ok(Some(Attachment { number, access }))
    }

    fn detach(&mut self, controller: usize, namespace: usize, outbox: &mut Outbox) {
        let Some(known) = self.controllers.get_mut(controller) else { return };
        if let Some(attached) = known.namespaces.get_mut(namespace) {
            attached.holders -= 1;
        }
        self.sweep_namespaces(controller, outbox);
    }

    fn resume_writes(&mut self) {
        for (key, controller) in &mut self.controllers {
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

    fn load(&self, controller: usize, now: Option<Time>) -> TargetLoad {
        let now = now.unwrap_or(self.clock);
        self.controllers.get(controller).map_or(TargetLoad::Away, |known| known.load(now))
    }

    fn loads(&self, now: Time) -> Vec<(usize, TargetLoad)> {
        self.controllers.iter().map(|(key, controller)| (key, controller.load(now))).collect()
    }

    fn begin_probe(&mut self, controller: usize, now: Option<Time>) {
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

    fn limits(&self, controller: usize) -> Result<ControllerLimits, Error> {
        let controller = self.controllers.get(controller).ok_or(ErrorKind::Closed)?;
        match controller.refusal() {
            Some(error) => Err(error.clone()),
            None => Ok(controller.limits),
        }
    }

    fn arm(&mut self) {
        // Every driver takes a turn between this and its sleep.
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

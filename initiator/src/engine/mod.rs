//! The state machine of one device and its connections, driven by [`HostEngine::turn`].

pub(crate) mod arena;
pub(crate) mod association_end;
pub(crate) mod auth_exchange;
pub(crate) mod authenticate;
pub(crate) mod block_plan;
pub(crate) mod breaker;
pub(crate) mod capsules;
pub(crate) mod change_count;
pub(crate) mod check_state;
pub(crate) mod checks;
pub(crate) mod command_trace;
pub(crate) mod completion;
pub(crate) mod computation;
pub(crate) mod connect;
pub(crate) mod connections;
pub(crate) mod controller;
pub(crate) mod deferred;
pub(crate) mod device_events;
pub(crate) mod expiry;
pub(crate) mod failover;
pub(crate) mod fence;
pub(crate) mod fresh;
pub(crate) mod health;
pub(crate) mod host_engines;
pub(crate) mod issue;
pub(crate) mod limits;
pub(crate) mod link;
pub(crate) mod list_use;
pub(crate) mod live_routes;
pub(crate) mod namespace_identity;
pub(crate) mod passthrough;
pub(crate) mod path_access;
pub(crate) mod plan_run;
pub(crate) mod plan_state;
pub(crate) mod queue;
pub(crate) mod range_lists;
pub(crate) mod range_op;
pub(crate) mod range_owner;
pub(crate) mod range_queues;
pub(crate) mod range_results;
pub(crate) mod raw;
pub(crate) mod read_ranges;
pub(crate) mod ready_list;
pub(crate) mod reconnect_delay;
pub(crate) mod rejection;
pub(crate) mod reply;
pub(crate) mod requests;
pub(crate) mod results;
pub(crate) mod same_machine;
pub(crate) mod session;
pub(crate) mod shard_routes;
pub(crate) mod submission;
pub(crate) mod task;
pub(crate) mod wire;
pub(crate) mod wr_id;
pub(crate) mod write_table;

use std::os::fd::BorrowedFd;

use nvme_proto::nvm::ListedRange;
use nvme_proto::{HostId, HostNqn, Status};
use rdma::{CmEvent, GroupStats, Time};

use crate::engine::arena::{Arena, ControllerKey, QueueKey, RangeKey, RunKey};
use crate::engine::auth_exchange::Entropy;
use crate::engine::computation::Computation;
use crate::engine::connections::{ConnectionRole, Connections};
use crate::engine::controller::ControllerState;
use crate::engine::fence::Fence;
use crate::engine::fresh::Fresh;
use crate::engine::plan_run::PlanRun;
use crate::engine::queue::{FinishedCommand, HostQueue};
use crate::engine::range_op::RangeOp;
use crate::engine::range_queues::BlockStage;
use crate::engine::ready_list::ReadyList;
use crate::engine::results::Outbox;
use crate::engine::same_machine::PathChoice;
use crate::engine::session::ControllerPhase;
use crate::engine::task::Task;
use crate::engine::wire::{Arrival, ArrivalKind, Violation, Wire, WireEvent};
use crate::types::counters::HostCounters;
use crate::types::error::{Error, ErrorKind, UnreachableCause};

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

/// The engine of a device: its controllers, queues and ranges.
pub(crate) struct HostEngine {
    pub(crate) host: HostIdentity,
    /// The device. Fields are dropped in order: queue pairs before the memory that they use.
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) queues: Arena<QueueKey, HostQueue<Task>>,
    pub(crate) controllers: Arena<ControllerKey, ControllerState>,
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
    /// List for completions, whose capacity is kept.
    arrivals: Vec<Arrival>,
    /// Ranges of the command that is being sent, whose capacity is kept.
    pub(crate) list: Vec<ListedRange>,
    /// Selection of the provider; only for a target on this machine.
    pub(crate) path: Option<PathChoice>,
    pub(crate) entropy: Entropy,
    /// Computations for authentications, which the driver takes after the turn.
    pub(crate) computations: Vec<Computation>,
    /// Number of the next computation.
    pub(crate) next_computation: u64,
}

impl HostEngine {
    /// Most completions that are taken before new commands are sent.
    const BATCH: usize = 64;
    /// Fewest completions in a batch, enough to be worth the system calls that send the next
    /// commands.
    const BATCH_WORTH_A_CALL: usize = 16;
    /// Most rounds of a turn, so that a busy engine does not delay the others.
    const ROUNDS: usize = 16;

    /// Returns the engine of a device. For a target on this machine, `path` selects the provider
    /// between connections.
    pub(crate) fn new(
        wire: Box<dyn Wire>,
        host: HostIdentity,
        path: Option<PathChoice>,
        entropy: Entropy,
    ) -> Self {
        Self {
            host,
            wire,
            queues: Arena::default(),
            controllers: Arena::default(),
            ready_list: ReadyList::default(),
            connections: Connections::default(),
            fences: Vec::new(),
            ops: Arena::default(),
            runs: Arena::default(),
            counters: HostCounters::default(),
            clock: Time::ZERO,
            pushed: false,
            fresh: Fresh::default(),
            next_expiry: None,
            arrivals: Vec::with_capacity(Self::BATCH),
            list: Vec::with_capacity(limits::MAX_LISTED_RANGES.into()),
            path,
            entropy,
            computations: Vec::new(),
            next_computation: 0,
        }
    }

    /// Does the work that is ready at `now`, without blocking.
    pub(crate) fn turn(&mut self, now: Time, outbox: &mut Outbox) -> NextTurn {
        self.take_fresh(now, outbox);
        self.issue(outbox);
        for _ in 0..Self::ROUNDS {
            if !self.round(outbox) {
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

    /// Sends queued commands without polling for completions or events. Returns when the next turn
    /// is due.
    pub(crate) fn launch(&mut self, now: Time, outbox: &mut Outbox) -> Option<Time> {
        self.take_fresh(now, outbox);
        self.issue(outbox);
        self.deadline()
    }

    /// Returns whether the provider has descriptors that wake a thread; a simulated one has none.
    pub(crate) fn has_fds(&self) -> bool {
        !self.fds().is_empty()
    }

    /// Returns descriptors that become readable when there is work.
    pub(crate) fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.wire.fds()
    }

    /// Enables wake-ups through the descriptors.
    pub(crate) fn arm(&mut self) {
        self.wire.arm();
    }

    /// Clears a wake-up, once a descriptor was readable.
    pub(crate) fn acknowledge(&mut self) {
        self.wire.acknowledge();
    }

    /// Returns the counters of the engine since it was created.
    pub(crate) fn counters(&self) -> HostCounters {
        self.counters
    }

    /// Returns the counters of the provider.
    pub(crate) fn group_stats(&self) -> GroupStats {
        self.wire.stats()
    }

    /// Sets the times of the requests that were queued since the last turn.
    fn take_fresh(&mut self, now: Time, outbox: &mut Outbox) {
        self.clock = now;
        let mut fresh = std::mem::take(&mut self.fresh);
        for op in fresh.ops.drain(..) {
            self.start_range(op, outbox);
        }
        for run in fresh.runs.drain(..) {
            self.start_run(run, outbox);
        }
        for (controller, raw) in fresh.raws.drain(..) {
            self.submit_raw(controller, raw, outbox);
        }
        for controller in fresh.closings.drain(..) {
            self.start_closing(controller, outbox);
        }
        for (controller, promise) in fresh.authentications.drain(..) {
            self.start_reauthentication(controller, promise, outbox);
        }
        for computed in fresh.computed.drain(..) {
            self.take_computed(computed, outbox);
        }
        // Keeps the room of the vectors.
        self.fresh = fresh;
    }

    fn round(&mut self, outbox: &mut Outbox) -> bool {
        let mut worked = self.drain_events(outbox);
        worked |= self.drain_completions(outbox);
        self.run_timers(outbox);
        self.issue(outbox);
        worked
    }

    /// Sends commands of the controllers that have become ready.
    fn issue(&mut self, outbox: &mut Outbox) {
        while let Some(controller) = self.ready_list.next_stirred() {
            if self.controllers.contains(controller) {
                self.issue_waiting(controller, outbox);
            }
            let deadline = self.controllers.get(controller).and_then(ControllerState::deadline);
            self.ready_list.set_timer(controller, deadline);
        }
        // A waiting caller whose result is ready may submit more immediately, which is sent in the
        // same flush.
        if self.pushed && !outbox.has_deferred() {
            // Responses cannot arrive before the flush returns, so no further round is needed.
            self.pushed = false;
            self.wire.flush(self.clock);
        }
    }

    fn drain_events(&mut self, outbox: &mut Outbox) -> bool {
        for round in 0..Self::BATCH {
            match self.wire.next_event(self.clock, self.connections.are_idle()) {
                Some(WireEvent::Connection(event)) => {
                    self.handle_connection_event(event, outbox);
                }
                Some(WireEvent::QueueFailed(queue)) => self.queue_failed(queue, outbox),
                Some(WireEvent::DeviceFailed) => self.device_failed(outbox),
                None => return round > 0,
            }
        }
        true
    }

    fn handle_connection_event(&mut self, event: CmEvent, outbox: &mut Outbox) {
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
                self.handle_resolved(controller, qid, conn, outbox);
            }
            (ConnectionRole::Opening { controller, .. }, CmEvent::Established { params, .. }) => {
                self.connections.insert(conn, ConnectionRole::Open { controller });
                self.handle_established(controller, conn, &params, outbox);
            }
            (_, CmEvent::Resolved { .. } | CmEvent::Established { .. }) => {}
            (known, end) => {
                let known = self.known_at_end(conn, known, outbox);
                if let Some(controller) = known.controller() {
                    self.end_association(controller, end_cause(&end), outbox);
                }
                // These events are the last of a connection.
                self.connections.remove(conn);
                self.wire.close(conn);
                if let CmEvent::Disconnected { confirmed: true, .. } = end {
                    self.confirm_end(conn);
                }
            }
        }
    }

    fn queue_failed(&mut self, queue: QueueKey, outbox: &mut Outbox) {
        let Some(queue) = self.queues.get(queue) else { return };
        let cause = ErrorKind::ConnectionLost("the RDMA device reports a failed queue pair");
        self.end_association(queue.controller(), cause.into(), outbox);
    }

    fn device_failed(&mut self, outbox: &mut Outbox) {
        let keys: Vec<_> = self.controllers.keys().collect();
        for key in keys {
            let phase = self.controllers.get(key).map(|controller| &controller.session.phase);
            if let Some(
                ControllerPhase::Opening(_)
                | ControllerPhase::Live(_)
                | ControllerPhase::Closing(_),
            ) = phase
            {
                let cause = ErrorKind::ConnectionLost("the RDMA device failed");
                self.end_association(key, cause.into(), outbox);
            }
        }
    }

    fn drain_completions(&mut self, outbox: &mut Outbox) -> bool {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let worked = self.wire.poll(self.clock, self.batch(), &mut arrivals);
        for arrival in arrivals.drain(..) {
            self.handle_arrival(arrival, outbox);
        }
        self.arrivals = arrivals;
        worked
    }

    /// Returns how many completions to take before the next commands are sent: a quarter of the
    /// ranges in progress, so that the others keep the target and both directions of the network
    /// busy.
    fn batch(&self) -> usize {
        (self.ops.len() / 4).clamp(Self::BATCH_WORTH_A_CALL, Self::BATCH)
    }

    fn handle_arrival(&mut self, arrival: Arrival, outbox: &mut Outbox) {
        // The queue was removed if an earlier completion of this batch ended its association.
        let Some(queue) = self.queues.get_mut(arrival.queue) else { return };
        let (key, qid) = (queue.controller(), queue.qid());
        self.ready_list.mark_ready(key);
        let finished = match arrival.what {
            ArrivalKind::Response { cqe, invalidated } => {
                self.pushed = true;
                self.controllers[key].health.keep_alive.last_answer = self.clock;
                queue.received(&mut *self.wire, cqe, invalidated)
            }
            ArrivalKind::Sent { index } => Ok(queue.sent(index)),
            ArrivalKind::Invalidated { index } => Ok(queue.invalidated(index)),
            ArrivalKind::Malformed(violation) => Err(violation),
            ArrivalKind::Failed(status) => {
                let error = ErrorKind::ConnectionLost(association_end::reason(status));
                return self.end_association(key, error.into(), outbox);
            }
        };
        match finished {
            Ok(Some(FinishedCommand { work, cqe })) => {
                if let (Task::Piece(piece), Some(trace)) = (&work, &mut outbox.trace) {
                    self.trace_piece((key, qid), piece, &cqe, trace);
                }
                match cqe.status().is(Status::AUTHENTICATION_REQUIRED) && !work.is_of_connect() {
                    true => self.authentication_withdrawn(key, work, outbox),
                    false => self.handle_finished(key, work, cqe, outbox),
                }
            }
            Ok(None) => {}
            Err(Violation(rule)) => {
                self.counters.protocol_violations += 1;
                self.end_association(key, ErrorKind::Protocol(rule).into(), outbox);
            }
        }
    }

    fn handle_finished(
        &mut self,
        controller: ControllerKey,
        task: Task,
        cqe: nvme_proto::Cqe,
        outbox: &mut Outbox,
    ) {
        match task {
            Task::Piece(piece) if piece.stage == BlockStage::List => {
                self.finish_list(controller, piece, &cqe, outbox);
            }
            Task::Piece(piece) => {
                self.finish_piece(controller, piece, cqe.status(), outbox);
            }
            Task::Raw { promise, chunk, to_host, namespace, .. } => {
                let buffer = (chunk, to_host);
                self.finish_raw(controller, promise, buffer, namespace, &cqe, outbox);
            }
            Task::Opening => self.advance_opening(controller, &cqe, outbox),
            Task::Authentication => self.finish_exchange_command(controller, &cqe, outbox),
            Task::KeepAlive => self.finish_keep_alive(controller, cqe.status(), outbox),
            Task::Check(task) => self.finish_check(controller, task, &cqe, outbox),
            Task::EventConfig => self.await_event(controller, &cqe, outbox),
            Task::AsyncEvent => self.take_event(controller, &cqe, outbox),
            Task::Abort => {}
            Task::Shutdown => self.end_closing(controller, outbox),
        }
    }

    fn finish_keep_alive(
        &mut self,
        controller: ControllerKey,
        status: Status,
        outbox: &mut Outbox,
    ) {
        let known = &mut self.controllers[controller];
        let keep_alive = &mut known.health.keep_alive;
        keep_alive.sent = None;
        if keep_alive.watch.is_some() {
            keep_alive.watch = known.options.silence().map(|silence| self.clock + silence / 2);
        }
        if !status.is_success() {
            let error = ErrorKind::Status(status).into();
            self.end_association(controller, error, outbox);
        }
    }

    fn deadline(&self) -> Option<Time> {
        debug_assert!(
            self.controllers.iter().all(|(key, it)| self.ready_list.timer(key) == it.deadline()),
            "nothing changes a deadline without stirring its controller"
        );
        let own =
            earliest(self.next_expiry, earliest(self.ready_list.deadline(), self.next_fence()));
        earliest(own, self.wire.deadline())
    }
}

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

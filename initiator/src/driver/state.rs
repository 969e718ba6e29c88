//! The engines of a host, their results, and the state of the threads that drive them.

use std::thread::Thread;

use rdma::Time;

use crate::driver::sleepers::Sleepers;
use crate::engine::arena::{Arena, EngineKey, PlanKey, RingKey};
use crate::engine::plan_state::PlanState;
use crate::engine::results::{Deferred, Outbox};
use crate::engine::shard_routes::{PathRoute, ShardPlace, ShardRoutes, TargetLoad};
use crate::engine::{HostEngine, NextTurn, earliest};
use crate::types::counters::HostCounters;

/// State of a host that its lock protects.
#[derive(Default)]
pub(crate) struct DriverState {
    pub(crate) engines: Arena<EngineKey, HostEngine>,
    /// Text for each engine that names its provider and the reason for that choice; empty for a
    /// device of the caller.
    pub(crate) reasons: Vec<String>,
    pub(crate) outbox: Outbox,
    /// Number of callers that drive or wait to.
    pub(super) callers: usize,
    /// Number of callers so far; while it changes, the host's thread leaves the engines to them.
    pub(super) visits: u64,
    pub(super) sleepers: Sleepers,
    /// Set while a caller sleeps on the descriptors: until when (`None`: no limit).
    pub(super) sleeping_until: Option<Option<Time>>,
    /// Set while the host's thread sleeps on the descriptors: until when (`None`: no limit).
    pub(super) thread_sleeps_until: Option<Option<Time>>,
    /// Time at which the engines must be turned again, as of the last turn.
    pub(super) due: Option<Time>,
    /// Callers that wait without driving; one is woken when the caller that sleeps on the
    /// descriptors leaves.
    pub(super) parked: Vec<Thread>,
    /// Whether the host's thread must process work that no waiting caller drives.
    pub(super) kicked: bool,
    pub(super) closing: bool,
    /// Counters of events that belong to no engine.
    pub(crate) counters: HostCounters,
    /// Lists for deferred work, whose capacity is kept.
    pub(super) deferred: Deferred,
}

impl DriverState {
    pub(super) fn arm(&mut self) {
        self.engines.values_mut().for_each(|engine| engine.arm());
    }

    /// Wakes a caller that waits for another to drive, if none does.
    pub(super) fn wake_parked(&mut self) {
        if self.sleeping_until.is_none()
            && let Some(next) = self.parked.pop()
        {
            next.unpark();
        }
    }

    pub(super) fn turn(&mut self, now: Time) -> NextTurn {
        let mut turn = NextTurn::SleepUntil(None);
        for engine in self.engines.values_mut() {
            turn = turn.and(engine.turn(now, &mut self.outbox));
        }
        if self.resubmit_displaced(now) | self.move_waiting(now) | self.resume_writes() {
            turn = NextTurn::Busy;
        }
        self.due = match turn {
            NextTurn::Busy => Some(now),
            NextTurn::SleepUntil(due) => due,
        };
        turn
    }

    pub(super) fn launch(&mut self, now: Time) {
        let mut due = None;
        for engine in self.engines.values_mut() {
            due = earliest(due, engine.launch(now, &mut self.outbox));
        }
        // A previous turn may have left work.
        let has_more = self.resubmit_displaced(now) | self.move_waiting(now) | self.resume_writes();
        let is_busy =
            has_more || self.outbox.has_deferred() || self.due.is_some_and(|time| time <= now);
        self.due = if is_busy { Some(now) } else { due };
    }

    /// Chooses the replica of each range of a plan.
    pub(super) fn choose_replicas(&mut self, plan: &PlanState, now: Option<Time>) {
        let load = |place: &ShardPlace| self.load(*place, now);
        let before: Vec<_> = plan.places().iter().map(load).collect();
        let mut loads = before.clone();
        plan.choose_replicas(&mut loads);
        let was_probe = |(before, after)| before == TargetLoad::Probe && after != before;
        let probes = before.into_iter().zip(loads).map(was_probe);
        for (place, _) in plan.places().iter().zip(probes).filter(|(_, is_probe)| *is_probe) {
            if let Some(engine) = self.engines.get_mut(place.engine) {
                engine.begin_probe(place.controller, now);
            }
        }
    }

    /// Returns the load of a controller, at `now` or at the last turn.
    pub(crate) fn load(&self, place: ShardPlace, now: Option<Time>) -> TargetLoad {
        let engine = self.engines.get(place.engine);
        engine.map_or(TargetLoad::Away, |engine| engine.load(place.controller, now))
    }

    /// Chooses the path of a range to a namespace over several paths; returns its index.
    pub(crate) fn choose_path(&mut self, routes: &ShardRoutes) -> usize {
        let path = routes.best_path(0, |place| self.load(place, None));
        if let Some(PathRoute { place, load: TargetLoad::Probe, .. }) = path
            && let Some(engine) = self.engines.get_mut(place.engine)
        {
            engine.begin_probe(place.controller, None);
        }
        path.map_or(0, |path| path.replica)
    }

    /// Retries writes that wait for other writes of this host, if one of those ended; false if none
    /// did.
    fn resume_writes(&mut self) -> bool {
        let is_released = self.outbox.writes.take_released();
        if is_released {
            self.engines.values_mut().for_each(|engine| engine.resume_writes());
        }
        is_released
    }

    pub(super) fn cancel_plan(&mut self, plan: PlanKey) -> usize {
        // Ranges between two replicas belong to no engine.
        let between = self.outbox.cancel_replica_retries(plan);
        let outbox = &mut self.outbox;
        let engines = self.engines.values_mut();
        between + engines.map(|engine| engine.cancel_plan(plan, outbox)).sum::<usize>()
    }

    pub(super) fn close_ring(&mut self, ring: RingKey) {
        // An empty ring is removed when it is closed.
        let has_ranges = self.outbox.in_flight(ring) > 0;
        self.outbox.close(ring);
        if has_ranges {
            for engine in self.engines.values_mut() {
                engine.abandon_ring(ring, &mut self.outbox);
            }
        }
    }

    /// Returns whether a thread sleeps on the descriptors beyond the time at which the engines must
    /// be turned.
    pub(super) fn is_overslept(&self) -> bool {
        let Some(due) = self.due else { return false };
        let sleepers = [self.thread_sleeps_until, self.sleeping_until];
        sleepers.into_iter().flatten().any(|until| until.is_none_or(|until| due < until))
    }

    pub(super) fn take_deferred(&mut self) -> Option<Deferred> {
        if !self.outbox.has_deferred() {
            return None;
        }
        let mut deferred = std::mem::take(&mut self.deferred);
        self.outbox.take_deferred(&mut deferred);
        Some(deferred)
    }
}

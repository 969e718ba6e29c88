//! The engines of a host, their results, and the threads that drive them.

use std::thread::Thread;

use rdma::Time;

use crate::driver::sleepers::Sleepers;
use crate::engine::plan_state::PlanState;
use crate::engine::results::{Deferred, Outbox, PlanKey, RingKey};
use crate::engine::shard_routes::{PathRoute, ShardPlace, ShardRoutes, TargetLoad};
use crate::engine::{ErasedEngine, NextTurn, earliest};
use crate::types::counters::HostCounters;

/// The state that the lock protects.
#[derive(Default)]
pub(crate) struct DriverState {
    pub(crate) engines: Vec<Box<dyn ErasedEngine>>,
    /// Which provider each engine has, and why, for a person; none for a device of the caller's.
    pub(crate) reasons: Vec<String>,
    pub(crate) outbox: Outbox,
    /// Callers that drive or wait to.
    pub(super) callers: usize,
    /// Callers that have come so far; while this changes the thread leaves the engines to them.
    pub(super) visits: u64,
    pub(super) sleepers: Sleepers,
    /// A caller sleeps on the descriptors until then.
    pub(super) sleeping_until: Option<Option<Time>>,
    /// The thread sleeps on the descriptors until then.
    pub(super) thread_sleeps_until: Option<Option<Time>>,
    /// When the engines want to be turned again, as of the last turn.
    pub(super) due: Option<Time>,
    /// Callers that another one is to wake, should it stop driving.
    pub(super) parked: Vec<Thread>,
    /// Something came in that no waiting caller drives.
    pub(super) kicked: bool,
    pub(super) closing: bool,
    /// Counters of events that no engine counts.
    pub(crate) counters: HostCounters,
    /// Room for what is done outside the lock.
    pub(super) deferred: Deferred,
}

impl DriverState {
    pub(super) fn arm(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.arm());
    }

    /// Wakes a caller that waits for another caller to drive, if none does.
    pub(super) fn wake_parked(&mut self) {
        if self.sleeping_until.is_none()
            && let Some(next) = self.parked.pop()
        {
            next.unpark();
        }
    }

    pub(super) fn turn(&mut self, now: Time) -> NextTurn {
        let mut turn = NextTurn::SleepUntil(None);
        for engine in &mut self.engines {
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
        for engine in &mut self.engines {
            due = earliest(due, engine.launch(now, &mut self.outbox));
        }
        // Work that was left undone is still to be done.
        let has_more = self.resubmit_displaced(now) | self.move_waiting(now) | self.resume_writes();
        let is_busy =
            has_more || self.outbox.has_deferred() || self.due.is_some_and(|time| time <= now);
        self.due = if is_busy { Some(now) } else { due };
    }

    /// Chooses the replica that each range of a plan is read from.
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

    /// The load of a controller; without a time, as of the last turn.
    pub(crate) fn load(&self, place: ShardPlace, now: Option<Time>) -> TargetLoad {
        let engine = self.engines.get(place.engine);
        engine.map_or(TargetLoad::Away, |engine| engine.load(place.controller, now))
    }

    /// Chooses the path of a range to a namespace that has several.
    pub(crate) fn choose_path(&mut self, routes: &ShardRoutes) -> usize {
        let path = routes.best_path(0, |place| self.load(place, None));
        if let Some(PathRoute { place, load: TargetLoad::Probe, .. }) = path
            && let Some(engine) = self.engines.get_mut(place.engine)
        {
            engine.begin_probe(place.controller, None);
        }
        path.map_or(0, |path| path.replica)
    }

    /// Tries again the writes that wait for others of this host, if any of those ended; false if
    /// none did.
    fn resume_writes(&mut self) -> bool {
        let is_released = self.outbox.writes.take_released();
        if is_released {
            self.engines.iter_mut().for_each(|engine| engine.resume_writes());
        }
        is_released
    }

    pub(super) fn cancel_plan(&mut self, plan: PlanKey) -> usize {
        // Those that are between two replicas belong to no engine.
        let between = self.outbox.cancel_replica_retries(plan);
        let outbox = &mut self.outbox;
        let engines = self.engines.iter_mut();
        between + engines.map(|engine| engine.cancel_plan(plan, outbox)).sum::<usize>()
    }

    pub(super) fn close_ring(&mut self, ring: RingKey) {
        // A ring that is empty is no more once it is closed.
        let has_ranges = self.outbox.in_flight(ring) > 0;
        self.outbox.close(ring);
        if has_ranges {
            for engine in &mut self.engines {
                engine.abandon(ring, &mut self.outbox);
            }
        }
    }

    /// Whether a thread that sleeps on the descriptors sleeps beyond the time when the engines want
    /// to be turned.
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

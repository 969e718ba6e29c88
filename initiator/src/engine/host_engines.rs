//! The engines of a host, with what they share.

use std::sync::Arc;

use rdma::Time;

use crate::engine::arena::{Arena, EngineKey, PlanKey, RingKey};
use crate::engine::computation::Computed;
use crate::engine::plan_run::PlanRun;
use crate::engine::plan_state::PlanState;
use crate::engine::results::Outbox;
use crate::engine::shard_routes::{PathRoute, ShardPlace, ShardRoutes, TargetLoad};
use crate::engine::{HostEngine, NextTurn};
use crate::memory::plan_region::ClaimedMemory;
use crate::types::counters::HostCounters;

/// The engines of a host, with the results and writes that they share. Ranges move from one engine
/// to another here.
#[derive(Default)]
pub(crate) struct HostEngines {
    pub(crate) engines: Arena<EngineKey, HostEngine>,
    /// Text for each engine that names its provider and the reason for that choice; empty for a
    /// device of the caller.
    pub(crate) reasons: Vec<String>,
    pub(crate) outbox: Outbox,
    /// Counters of events that belong to no engine.
    pub(crate) counters: HostCounters,
}

impl HostEngines {
    /// Adds an engine. `reason` names its provider and the reason for that choice.
    pub(crate) fn add(&mut self, engine: HostEngine, reason: String) -> EngineKey {
        self.reasons.push(reason);
        self.engines.insert(engine)
    }

    /// Does the work that is ready at `now`, without blocking.
    pub(crate) fn turn(&mut self, now: Time) -> NextTurn {
        let mut turn = NextTurn::SleepUntil(None);
        for (key, engine) in self.engines.iter_mut() {
            turn = turn.and(engine.turn(now, &mut self.outbox));
            if !engine.computations.is_empty() {
                let in_place = !engine.has_fds();
                self.outbox.compute(key, in_place, engine.computations.drain(..));
                turn = NextTurn::Busy;
            }
        }
        if self.fail_over(now) | self.resume_writes() { NextTurn::Busy } else { turn }
    }

    /// Sends queued commands without polling for completions or events.
    pub(crate) fn launch(&mut self, now: Time) -> NextTurn {
        let mut turn = NextTurn::SleepUntil(None);
        for engine in self.engines.values_mut() {
            let due = engine.launch(now, &mut self.outbox);
            turn = turn.and(NextTurn::SleepUntil(due));
        }
        let has_more = self.fail_over(now) | self.resume_writes();
        if has_more || self.outbox.has_deferred() { NextTurn::Busy } else { turn }
    }

    /// Takes the result of a computation, for the next turn.
    pub(crate) fn computed(&mut self, engine: EngineKey, computed: Computed) {
        // The engine was dropped if the host is closing.
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.fresh.computed.push(computed);
        }
    }

    pub(crate) fn counters(&self) -> HostCounters {
        self.engines.values().fold(self.counters, |sum, engine| sum.and(engine.counters()))
    }

    /// Starts a plan, for which `runs` returns the ranges of each engine. Without `now` the time of
    /// the last turn counts.
    pub(crate) fn submit_plan(
        &mut self,
        plan: Arc<PlanState>,
        memory: ClaimedMemory,
        runs: impl FnOnce(PlanKey) -> Vec<(EngineKey, PlanRun)>,
        now: Option<Time>,
    ) -> PlanKey {
        if plan.is_replicated() {
            self.choose_replicas(&plan, now);
        }
        let key = self.outbox.open_plan(plan, memory);
        for (engine, run) in runs(key) {
            // A handle of the controller keeps the host, and thereby its engine.
            self.engines[engine].submit_run(run);
        }
        key
    }

    fn choose_replicas(&mut self, plan: &PlanState, now: Option<Time>) {
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

    /// Records that a namespace has new paths, to which waiting ranges may be moved.
    pub(crate) fn note_changed_paths(&mut self) {
        self.outbox.note_move();
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

    /// Cancels a plan; returns how many ranges have ended by that.
    pub(crate) fn cancel_plan(&mut self, plan: PlanKey) -> usize {
        // Ranges between two replicas belong to no engine.
        let between = self.outbox.cancel_displaced(plan);
        let outbox = &mut self.outbox;
        let engines = self.engines.values_mut();
        between + engines.map(|engine| engine.cancel_plan(plan, outbox)).sum::<usize>()
    }

    /// Cancels and closes a plan whose ticket was dropped.
    pub(crate) fn close_plan(&mut self, plan: PlanKey) {
        // A plan that has ended is removed when it is closed.
        let has_ranges = self.outbox.is_plan_in_flight(plan);
        self.outbox.close_plan(plan);
        if has_ranges {
            self.cancel_plan(plan);
        }
    }

    /// Closes a ring; its reads send no further command.
    pub(crate) fn close_ring(&mut self, ring: RingKey) {
        // An empty ring is removed when it is closed.
        let has_ranges = self.outbox.in_flight(ring) > 0;
        self.outbox.close(ring);
        if has_ranges {
            for engine in self.engines.values_mut() {
                engine.abandon_ring(ring, &mut self.outbox);
            }
        }
    }
}

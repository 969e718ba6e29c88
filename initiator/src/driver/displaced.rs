//! Failovers: ranges that failed or wait are moved to another path, or read from another replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use rdma::Time;

use crate::driver::state::DriverState;
use crate::engine::arena::{ArenaKey, PlanKey};
use crate::engine::plan_run::PlanRun;
use crate::engine::range_op::{DisplacedRange, RangeOp};
use crate::engine::results::ReplicaRetry;
use crate::engine::shard_routes::{PathRoute, ShardPlace, TargetLoad};
use crate::types::error::{Error, ErrorKind};

impl DriverState {
    /// Reads failed ranges of plans from other replicas of their shards; false if no range failed.
    pub(super) fn resubmit_displaced(&mut self, now: Time) -> bool {
        if !self.outbox.has_replica_retries() {
            return false;
        }
        let mut runs = BTreeMap::<_, Vec<u32>>::new();
        for ReplicaRetry { plan, range, error, service } in self.outbox.take_replica_retries() {
            let state = Arc::clone(self.outbox.plan_state(plan));
            // The range must not be a probe of another target, since it has failed once.
            let load = |place| self.load(place, Some(now)).without_probe();
            if state.choose_again(range, now, load) {
                let place = state.entry(range).1.place;
                runs.entry((plan, place)).or_default().push(range);
            } else {
                self.outbox.end_for_good(plan, range, Err(error), service);
            }
        }
        for ((plan, place), ranges) in runs {
            self.submit_again(plan, place, ranges);
        }
        true
    }

    /// Records that a namespace has new paths, to which waiting ranges may be moved.
    pub(crate) fn note_changed_paths(&mut self) {
        self.outbox.note_move();
    }

    /// Moves ranges that wait for a disconnected target to a connected one, if a controller was
    /// connected or lost since the last call; false if nothing was moved.
    pub(super) fn move_waiting(&mut self, now: Time) -> bool {
        let displaced = self.outbox.take_displaced();
        if !self.outbox.take_move() && displaced.is_empty() {
            return false;
        }
        let loads: Vec<_> = self.engines.values().map(|engine| engine.loads(now)).collect();
        let load = |place: ShardPlace| {
            let mut controllers = loads.get(place.engine.index()).into_iter().flatten();
            let known = controllers.find(|(key, _)| *key == place.controller);
            known.map_or(TargetLoad::Away, |(_, load)| load.without_probe())
        };
        let outbox = &self.outbox;
        let mut elsewhere = |plan, range, began| {
            let state = outbox.plan_state(plan);
            state.is_replicated() && state.choose_connected(range, began, load)
        };
        let mut runs = BTreeMap::<_, Vec<u32>>::new();
        for engine in self.engines.values_mut() {
            for (plan, range) in engine.give_away(&mut elsewhere) {
                let place = outbox.plan_state(plan).entry(range).1.place;
                runs.entry((plan, place)).or_default().push(range);
            }
        }
        let usable = |op: &RangeOp| op.best_path(load).filter(|path| !path.load.is_away());
        let mut moves = Vec::new();
        for engine in self.engines.values_mut() {
            let given = engine.give_away_ring_ranges(&|op| usable(op).is_some());
            moves.extend(given.into_iter().map(|op| (usable(&op), op, None)));
        }
        moves.extend(displaced.into_iter().map(|DisplacedRange { op, error }| {
            // If no path is connected, one whose target was not lost.
            let path = op.best_path(load).filter(|path| path.load != TargetLoad::Lost);
            (path, op, Some(error))
        }));
        let any = !runs.is_empty() || !moves.is_empty();
        for (path, op, error) in moves {
            self.move_range(now, path, op, error);
        }
        for ((plan, place), mut ranges) in runs {
            ranges.sort_unstable();
            self.submit_again(plan, place, ranges);
        }
        any
    }

    /// Moves a range to another path, or ends it with an error if there is no path.
    fn move_range(
        &mut self,
        now: Time,
        path: Option<PathRoute>,
        op: RangeOp,
        error: Option<Error>,
    ) {
        let engine = path.and_then(|path| self.engines.get_mut(path.place.engine).zip(Some(path)));
        match engine {
            Some((engine, path)) => {
                self.counters.failovers += 1;
                engine.adopt_range(op.moved_to(&path), &mut self.outbox);
            }
            None => {
                self.counters.ranges_failed += 1;
                let error = error.unwrap_or_else(|| ErrorKind::Closed.into());
                op.fail(error, now, &mut self.outbox);
            }
        }
    }

    fn submit_again(&mut self, plan: PlanKey, place: usize, ranges: Vec<u32>) {
        self.counters.failovers += ranges.len() as u64;
        let state = Arc::clone(self.outbox.plan_state(plan));
        let ShardPlace { engine, controller } = state.places()[place];
        let options = state.options();
        let run = PlanRun::new(plan, state, controller, ranges.into(), options);
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.submit_run(run);
        }
    }
}

//! Failovers: ranges that failed or wait are moved to another path, or read from another replica.

use std::collections::BTreeMap;
use std::sync::Arc;

use rdma::Time;

use crate::engine::arena::{ArenaKey, ControllerKey, PlanKey};
use crate::engine::host_engines::HostEngines;
use crate::engine::plan_run::PlanRun;
use crate::engine::range_op::{Displaced, DisplacedRange, RangeOp};
use crate::engine::shard_routes::{PathRoute, ShardPlace, TargetLoad};
use crate::types::error::{Error, ErrorKind};

/// Loads of all controllers at one time, by engine. No range becomes a probe of a controller by
/// them, since it has failed or waited before.
struct Loads(Vec<Vec<(ControllerKey, TargetLoad)>>);

impl Loads {
    fn of(&self, place: ShardPlace) -> TargetLoad {
        let mut controllers = self.0.get(place.engine.index()).into_iter().flatten();
        let known = controllers.find(|(key, _)| *key == place.controller);
        known.map_or(TargetLoad::Away, |(_, load)| load.without_probe())
    }
}

/// Ranges of plans by the place of the replica that they are read from.
type RangesByPlace = BTreeMap<(PlanKey, usize), Vec<u32>>;

/// A range of a ring with its next path, or with its result without another path.
struct RingMove {
    path: Option<PathRoute>,
    op: RangeOp,
    error: Error,
}

impl HostEngines {
    /// Continues displaced ranges on other paths or replicas. If a controller was connected or lost
    /// since the last call, ranges that wait for a disconnected target are moved to a connected
    /// one. Returns false if nothing was moved.
    pub(super) fn fail_over(&mut self, now: Time) -> bool {
        let displaced = self.outbox.take_displaced();
        let has_moved = self.outbox.take_move();
        if displaced.is_empty() && !has_moved {
            return false;
        }
        let loads = Loads(self.engines.values().map(|engine| engine.loads(now)).collect());
        let (mut runs, mut of_rings, mut has_ended) = (RangesByPlace::new(), Vec::new(), false);
        for DisplacedRange { range, error } in displaced {
            match range {
                Displaced::OfPlan { plan, index, service } => {
                    let state = Arc::clone(self.outbox.plan_state(plan));
                    if state.choose_again(index, now, |place| loads.of(place)) {
                        let place = state.entry(index).1.place;
                        runs.entry((plan, place)).or_default().push(index);
                    } else {
                        self.outbox.end_for_good(plan, index, Err(error), service);
                        has_ended = true;
                    }
                }
                Displaced::OfRing(op) => of_rings.push((*op, error)),
            }
        }
        let any = !runs.is_empty() || !of_rings.is_empty() || has_ended;
        self.submit_runs(runs);
        if !has_moved && of_rings.is_empty() {
            return any;
        }
        let (runs, mut moves) = self.take_waiting(&loads);
        moves.extend(of_rings.into_iter().map(|(op, error)| {
            // If no path is connected, one whose target was not lost.
            let path = op.best_path(|place| loads.of(place));
            let path = path.filter(|path| path.load != TargetLoad::Lost);
            RingMove { path, op, error }
        }));
        let any = any || !runs.is_empty() || !moves.is_empty();
        for ring_move in moves {
            self.move_range(now, ring_move);
        }
        self.submit_runs(runs);
        any
    }

    /// Takes ranges that wait for a disconnected target, or for an access state, and that another
    /// path or replica would serve now.
    fn take_waiting(&mut self, loads: &Loads) -> (RangesByPlace, Vec<RingMove>) {
        let Self { engines, outbox, .. } = self;
        let load = |place| loads.of(place);
        let mut elsewhere = |plan, index, began| {
            let state = outbox.plan_state(plan);
            state.is_replicated() && state.choose_connected(index, began, load)
        };
        let mut runs = RangesByPlace::new();
        for engine in engines.values_mut() {
            for (plan, index) in engine.give_away(&mut elsewhere) {
                let place = outbox.plan_state(plan).entry(index).1.place;
                runs.entry((plan, place)).or_default().push(index);
            }
        }
        runs.values_mut().for_each(|ranges| ranges.sort_unstable());
        let usable = |op: &RangeOp| op.best_path(load).filter(|path| !path.load.is_away());
        let given = engines
            .values_mut()
            .flat_map(|engine| engine.give_away_ring_ranges(&|op| usable(op).is_some()));
        let moves = given.map(|op| {
            let (path, error) = (usable(&op), ErrorKind::Closed.into());
            RingMove { path, op, error }
        });
        (runs, moves.collect())
    }

    /// Moves a range of a ring to its next path, or ends it without one.
    fn move_range(&mut self, now: Time, RingMove { path, op, error }: RingMove) {
        let engine = path.and_then(|path| self.engines.get_mut(path.place.engine).zip(Some(path)));
        match engine {
            Some((engine, path)) => {
                self.counters.failovers += 1;
                engine.adopt_range(op.moved_to(&path), &mut self.outbox);
            }
            None => {
                self.counters.ranges_failed += 1;
                self.outbox.fail(op, error, now);
            }
        }
    }

    /// Submits ranges of plans to the engines of their replicas.
    fn submit_runs(&mut self, runs: RangesByPlace) {
        for ((plan, place), ranges) in runs {
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
}

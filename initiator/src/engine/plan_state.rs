//! State of a plan, shared by its ticket and the engines.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rdma::Time;

use crate::engine::completion::RangeService;
use crate::engine::shard_routes::{ShardPlace, ShardRoute, ShardRoutes, TargetLoad};
use crate::memory::region::Keys;
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, ErrorKind};
use crate::types::options::BatchOptions;
use crate::types::plan::{Entry, Outcome, PlanProgress};

/// State of a plan. Results are written while the host is locked, and read without the lock.
pub(crate) struct PlanState {
    direction: RangeDirection,
    entries: Box<[Entry]>,
    routes: Arc<ShardRoutes>,
    /// A [`ReplicaChoice`] for each range, as bits. Empty until the choice, and if no shard has
    /// replicas.
    choices: OnceLock<Box<[AtomicU16]>>,
    options: BatchOptions,
    /// Deadline of the plan, once its first range has been taken by an engine.
    due: OnceLock<Time>,
    /// Keys of the region, by the place of the controller in `routes`; `None` if it is not used.
    keys: Box<[Option<Keys>]>,
    outcomes: Box<[AtomicU64]>,
    failed: AtomicUsize,
    /// Written after the outcomes: a reader that sees a range counted also sees its outcome.
    done: AtomicUsize,
    failures: Mutex<Failures>,
}

/// Errors of a plan's ranges, without their offsets and lengths.
#[derive(Default)]
struct Failures {
    single: BTreeMap<u32, Error>,
    /// Errors that were the result of many ranges together.
    common: Vec<(Box<[u32]>, Error)>,
}

impl PlanState {
    pub(crate) fn new(
        direction: RangeDirection,
        entries: &[Entry],
        routes: Arc<ShardRoutes>,
        keys: Box<[Option<Keys>]>,
        options: BatchOptions,
    ) -> Self {
        let pending = Outcome::of_status(Outcome::PENDING).to_bits();
        Self {
            direction,
            entries: entries.into(),
            routes,
            choices: OnceLock::new(),
            options,
            due: OnceLock::new(),
            keys,
            outcomes: entries.iter().map(|_| AtomicU64::new(pending)).collect(),
            failed: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            failures: Mutex::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn direction(&self) -> RangeDirection {
        self.direction
    }

    /// Returns the number of ranges, as the type of their indexes.
    pub(crate) fn ranges(&self) -> u32 {
        // A plan has fewer than 2^32 ranges, which is checked when it is submitted.
        self.entries.len() as u32
    }

    pub(crate) fn entry(&self, index: u32) -> (&Entry, &ShardRoute) {
        let entry = &self.entries[index as usize];
        let replica = self.choice(index).map_or(0, |choice| choice.replica);
        (entry, &self.routes.of(entry.shard)[replica])
    }

    /// Returns the shard of a range, and the index of the replica that was attempted last.
    pub(crate) fn replica(&self, index: usize) -> (u32, usize) {
        // A plan has fewer than 2^32 ranges, which is checked when it is submitted.
        let replica = self.choice(index as u32).map_or(0, |choice| choice.replica);
        (self.entries[index].shard, replica)
    }

    fn choice(&self, index: u32) -> Option<ReplicaChoice> {
        let choice = self.choices.get()?[index as usize].load(Ordering::Relaxed);
        Some(ReplicaChoice::from_bits(choice))
    }

    /// Chooses the replica of each range by `loads`, which are those of the controllers by place.
    /// If a range becomes the probe of a controller, its [`TargetLoad::Probe`] is replaced by
    /// [`TargetLoad::Avoided`].
    pub(crate) fn choose_replicas(&self, loads: &mut [TargetLoad]) {
        let choices = self.entries.iter().map(|entry| {
            let load = |place: usize| loads[place];
            // If all replicas were taken out, reading from the first returns the error.
            let replica = self.routes.best(entry.shard, 0, load).unwrap_or_default();
            match &mut loads[self.routes.of(entry.shard)[replica].place] {
                TargetLoad::Serving(load) => *load += u64::from(entry.length),
                probe @ TargetLoad::Probe if entry.length > 0 => *probe = TargetLoad::Avoided,
                _ => {}
            }
            AtomicU16::new(ReplicaChoice::first(replica).to_bits())
        });
        // It is set once, before any range is started.
        let _ = self.choices.set(choices.collect());
    }

    /// Returns how often the range was started on replicas before the last one.
    pub(crate) fn earlier_attempts(&self, index: u32) -> u32 {
        self.choice(index).map_or(0, |choice| choice.tried.count_ones() - 1 + choice.moves)
    }

    /// Chooses another replica for a range that failed; false if all were attempted, or the
    /// deadline has passed.
    pub(crate) fn choose_again(
        &self,
        index: u32,
        now: Time,
        load: impl Fn(ShardPlace) -> TargetLoad,
    ) -> bool {
        let Some(choice) = self.choice(index) else { return false };
        let shard = self.entries[index as usize].shard;
        let load = |place: usize| load(self.places()[place]);
        match self.routes.best(shard, choice.tried, load) {
            Some(replica) if self.due.get().is_none_or(|&due| now < due) => {
                self.choose(index, choice.next(replica));
                true
            }
            _ => false,
        }
    }

    /// Chooses a connected replica for a range whose target is disconnected, even if it was
    /// attempted before; false if no replica is connected. `began`: whether the range had been
    /// started.
    pub(crate) fn choose_connected(
        &self,
        index: u32,
        began: bool,
        load: impl Fn(ShardPlace) -> TargetLoad,
    ) -> bool {
        let Some(choice) = self.choice(index) else { return false };
        let shard = self.entries[index as usize].shard;
        let load = |place: usize| load(self.places()[place]);
        let Some(replica) = self.routes.best(shard, choice.failed(), load) else { return false };
        if self.routes.is_away(shard, replica, load) || replica == choice.replica {
            return false;
        }
        self.choose(index, choice.moved(replica, began));
        true
    }

    fn choose(&self, index: u32, choice: ReplicaChoice) {
        if let Some(choices) = self.choices.get() {
            choices[index as usize].store(choice.to_bits(), Ordering::Relaxed);
        }
    }

    /// Records that the replica of a range does not have the bytes of its shard.
    pub(crate) fn take_out(&self, index: u32, error: &Error) {
        let replica = self.choice(index).map_or(0, |choice| choice.replica);
        self.routes.take_out(self.entries[index as usize].shard, replica, error);
    }

    /// Returns whether a range that failed with this error may be read from another replica.
    pub(crate) fn has_alternative(&self, index: u32, error: &Error) -> bool {
        let is_its_fault = match error.kind() {
            ErrorKind::Cancelled => false,
            ErrorKind::Changed(_) | ErrorKind::Protocol(_) => true,
            _ => error.is_retryable(),
        };
        let shard = self.entries[index as usize].shard;
        let skipped = self.choice(index).map(|choice| choice.tried | self.routes.out(shard));
        let replicas = self.routes.of(shard).len();
        is_its_fault && skipped.is_some_and(|skipped| (skipped.count_ones() as usize) < replicas)
    }

    pub(crate) fn is_replicated(&self) -> bool {
        self.routes.is_replicated()
    }

    pub(crate) fn options(&self) -> BatchOptions {
        self.options
    }

    pub(crate) fn places(&self) -> &[ShardPlace] {
        self.routes.places()
    }

    /// Returns the deadline of the plan: `limit` after the time of the first call.
    pub(crate) fn due(&self, now: Time, limit: Duration) -> Time {
        *self.due.get_or_init(|| now + limit)
    }

    /// Returns the keys of the region in the protection domain of a shard's controller.
    pub(crate) fn keys(&self, route: &ShardRoute) -> Keys {
        // The keys of all controllers in use were set when the plan was submitted.
        self.keys[route.place].unwrap_or(Keys::NONE)
    }

    pub(crate) fn outcome(&self, index: usize) -> Outcome {
        // Acquire: a reader that sees the end of the range also sees its bytes.
        Outcome::from_bits(self.outcomes[index].load(Ordering::Acquire))
    }

    pub(crate) fn progress(&self) -> PlanProgress {
        let done = self.done.load(Ordering::Acquire);
        let failed = self.failed.load(Ordering::Relaxed).min(done);
        PlanProgress { done, failed, total: self.len() }
    }

    /// Returns the error of a range that failed.
    pub(crate) fn error(&self, index: usize) -> Option<Error> {
        let outcome = self.outcome(index);
        if outcome.is_ok() || outcome.is_pending() {
            return None;
        }
        let entry = &self.entries[index];
        let error = self.failures().of(index as u32);
        // No error is stored for a cancelled range.
        let error = error.unwrap_or_else(|| ErrorKind::Cancelled.into());
        let error = error.of_attempts(outcome.attempts.into());
        Some(error.of_range(entry.offset, entry.length.into()))
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a range. Called once for each, while the host is locked.
    pub(crate) fn end(&self, index: u32, outcome: Outcome, error: Option<Error>) {
        if let Some(error) = error {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.failures().single.insert(index, error);
        }
        self.outcomes[index as usize].store(outcome.to_bits(), Ordering::Release);
        self.done.fetch_add(1, Ordering::Release);
    }

    /// Records the success of `count` ranges, like [`PlanState::end`].
    pub(crate) fn end_all(&self, first: u32, count: u32, service: RangeService) {
        for index in first..first + count {
            let attempts = service.attempts + self.earlier_attempts(index);
            let outcome = RangeService { attempts, ..service }.outcome(&Ok(()));
            self.outcomes[index as usize].store(outcome.to_bits(), Ordering::Release);
        }
        self.done.fetch_add(count as usize, Ordering::Release);
    }

    /// Records the error of ranges that were not started.
    pub(crate) fn end_unsent(&self, ranges: &[u32], error: &Error) {
        let status = Outcome::status_of(error);
        if status != Outcome::CANCELLED {
            self.failures().common.push((ranges.into(), error.clone()));
        }
        self.failed.fetch_add(ranges.len(), Ordering::Relaxed);
        for &index in ranges {
            let attempts = u8::try_from(self.earlier_attempts(index)).unwrap_or(u8::MAX);
            let outcome = Outcome { attempts, ..Outcome::of_status(status) };
            self.outcomes[index as usize].store(outcome.to_bits(), Ordering::Release);
        }
        self.done.fetch_add(ranges.len(), Ordering::Release);
    }
}

/// The replica that a range is read from, and those that were attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ReplicaChoice {
    replica: usize,
    /// Bit mask of the replicas on which the range failed, and of the current one.
    tried: u8,
    /// Number of times that it had been started on a target that was disconnected, at most 31.
    moves: u32,
}

impl ReplicaChoice {
    const MOVES_MAX: u32 = 31;

    const fn first(replica: usize) -> Self {
        Self { replica, tried: 1 << replica, moves: 0 }
    }

    /// Returns the choice after a failure on the current replica.
    const fn next(self, replica: usize) -> Self {
        Self { replica, tried: self.tried | 1 << replica, ..self }
    }

    /// Returns the choice after the target of the current replica was disconnected.
    fn moved(self, replica: usize, began: bool) -> Self {
        let moves = (self.moves + u32::from(began)).min(Self::MOVES_MAX);
        Self { replica, tried: self.failed() | 1 << replica, moves }
    }

    /// Returns the bit mask of the replicas on which the range failed.
    const fn failed(self) -> u8 {
        self.tried & !(1 << self.replica)
    }

    const fn to_bits(self) -> u16 {
        (self.moves as u16) << 11 | (self.replica as u16) << 8 | self.tried as u16
    }

    const fn from_bits(bits: u16) -> Self {
        let replica = (bits >> 8 & 7) as usize;
        Self { replica, tried: bits as u8, moves: (bits >> 11) as u32 }
    }
}

impl Failures {
    fn of(&self, index: u32) -> Option<Error> {
        let common = || {
            self.common.iter().find(|(ranges, _)| ranges.contains(&index)).map(|(_, error)| error)
        };
        self.single.get(&index).or_else(common).cloned()
    }
}

#[cfg(test)]
mod tests {
    use nvme_proto::log::AnaState;

    use super::*;
    use crate::engine::arena::{ArenaKey, ControllerKey, EngineKey, NamespaceKey};
    use crate::engine::path_access::PathAccess;

    fn plan(entries: usize) -> PlanState {
        let entries: Vec<_> = (0..entries as u64)
            .map(|i| Entry { shard: 0, length: 10, offset: i * 10, dst: i * 10 })
            .collect();
        let read = RangeDirection::Read;
        PlanState::new(read, &entries, Arc::default(), [].into(), BatchOptions::new())
    }

    #[test]
    fn each_range_has_its_own_error() {
        let plan = plan(5);
        let ok = Outcome { status: 0, path: 1, attempts: 1, latency_us: 7 };
        plan.end(0, ok, None);
        plan.end(2, Outcome { status: Outcome::LOST, attempts: 3, ..ok }, Some(lost()));
        plan.end_unsent(&[1, 3], &ErrorKind::Closed.into());
        let progress = PlanProgress { done: 4, failed: 3, total: 5 };
        assert_eq!((plan.progress(), plan.outcome(0)), (progress, ok));
        assert!(plan.error(0).is_none() && plan.error(4).is_none());
        let error = plan.error(2).unwrap();
        assert!(matches!(error.kind(), ErrorKind::ConnectionLost(_)));
        assert_eq!((error.offset(), error.length(), error.attempts()), (Some(20), Some(10), 3));
        let error = plan.error(3).unwrap();
        assert!(matches!(error.kind(), ErrorKind::Closed));
        assert_eq!((error.offset(), error.attempts()), (Some(30), 0));
    }

    #[test]
    fn replicas_are_tried_once_each() {
        let plan = replicated(3, 4);
        // The third is read only where another is gone.
        plan.choose_replicas(&mut [5, 0, 0].map(TargetLoad::Serving));
        let place = |index| plan.entry(index).1.place;
        assert_eq!([0, 1, 2, 3].map(place), [1, 0, 1, 0]);
        assert!(!plan.has_alternative(0, &ErrorKind::Cancelled.into()));
        let mut tried = Vec::new();
        let loads = [TargetLoad::Serving(0), TargetLoad::Away, TargetLoad::Serving(1)];
        while plan.has_alternative(0, &lost()) {
            assert!(plan.choose_again(0, Time::ZERO, |place| loads[place.engine.index()]));
            tried.push(place(0));
        }
        assert_eq!(tried, [0, 2]);
        assert!(!plan.choose_again(0, Time::ZERO, |_| TargetLoad::Serving(0)));
        plan.end_unsent(&[0, 1], &ErrorKind::Cancelled.into());
        let cancelled = |attempts| Outcome { attempts, ..Outcome::of_status(Outcome::CANCELLED) };
        assert_eq!([0, 1].map(|index| plan.outcome(index)), [2, 0].map(cancelled));
    }

    #[test]
    fn one_range_probes_a_target() {
        let plan = replicated(2, 4);
        let mut loads = [TargetLoad::Probe, TargetLoad::Serving(0)];
        plan.choose_replicas(&mut loads);
        assert_eq!([0, 1, 2, 3].map(|index| plan.entry(index).1.place), [0, 1, 1, 1]);
        assert_eq!(loads[0], TargetLoad::Avoided);
    }

    #[test]
    fn ranges_move_between_targets_that_come_and_go() {
        let plan = replicated(2, 1);
        plan.choose_replicas(&mut [TargetLoad::Serving(0); 2]);
        assert!(!plan.choose_connected(0, true, |_| TargetLoad::Away));
        for round in 0..100 {
            let (gone, other) = (round % 2, 1 - round % 2);
            assert_eq!(plan.entry(0).1.place, gone);
            let load = |place: ShardPlace| match place.engine.index() == gone {
                true => TargetLoad::Away,
                false => TargetLoad::Avoided,
            };
            assert!(plan.choose_connected(0, round % 4 == 0, load));
            assert_eq!(plan.entry(0).1.place, other);
            assert_eq!(plan.earlier_attempts(0), (round as u32 / 4 + 1).min(31));
        }
        // A replica that failed at it is not among them.
        assert!(plan.choose_again(0, Time::ZERO, |_| TargetLoad::Serving(0)));
        assert!(!plan.choose_connected(0, true, |_| TargetLoad::Serving(0)));
    }

    #[test]
    fn a_replica_that_is_out_is_not_chosen() {
        let plan = replicated(3, 2);
        plan.choose_replicas(&mut [TargetLoad::Serving(0); 3]);
        let changed = Error::from(ErrorKind::Changed("its size".to_owned()));
        plan.take_out(0, &changed);
        plan.take_out(0, &changed);
        assert_eq!(plan.routes.out_count(), 1);
        assert!(plan.has_alternative(0, &changed));
        assert!(plan.choose_again(0, Time::ZERO, |_| TargetLoad::Serving(0)));
        assert_eq!(plan.entry(0).1.place, 1);
        assert_eq!(plan.routes.best(0, 0, |_| TargetLoad::Serving(0)), Some(1));
        plan.take_out(0, &changed);
        assert_eq!(plan.routes.best(0, 1 << 2, |_| TargetLoad::Serving(0)), None);
        assert_eq!(plan.routes.out_list().len(), 2);
    }

    /// A plan of ranges of one shard, whose replicas are on as many targets.
    fn replicated(replicas: usize, ranges: usize) -> PlanState {
        let mut routes = ShardRoutes::default();
        routes.push((0..replicas).map(|place| {
            (
                ShardRoute { namespace: NamespaceKey::at(0), place },
                PathAccess::new(AnaState::OPTIMIZED),
            )
        }));
        for engine in 0..replicas {
            let (index, controller) = (engine, ControllerKey::at(0));
            let place = ShardPlace { engine: EngineKey::at(index), controller };
            assert_eq!(routes.place(place), engine);
        }
        let entries = vec![Entry { shard: 0, length: 10, offset: 0, dst: 0 }; ranges];
        let read = RangeDirection::Read;
        PlanState::new(read, &entries, Arc::new(routes), [].into(), BatchOptions::new())
    }

    fn lost() -> Error {
        ErrorKind::ConnectionLost("by a test").into()
    }
}

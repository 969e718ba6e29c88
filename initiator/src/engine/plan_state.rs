//! A plan in flight, as its ticket and the cores share it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rdma::Time;

use crate::engine::shard_routes::{ShardPlace, ShardRoute, ShardRoutes};
use crate::memory::region::Keys;
use crate::types::error::{Error, ErrorKind};
use crate::types::options::BatchOptions;
use crate::types::plan::{Entry, Outcome, PlanProgress};

/// What is known of a plan. Results are written under the host's lock and read without.
pub(crate) struct PlanState {
    entries: Box<[Entry]>,
    routes: Arc<ShardRoutes>,
    /// Where each range is read from, if there is a choice: the bits of the replicas that were
    /// tried, and the number of the last one. Empty before that is chosen, and without a choice.
    choices: OnceLock<Box<[AtomicU16]>>,
    options: BatchOptions,
    /// When the plan's deadline is over, once that is known.
    due: OnceLock<Time>,
    /// Of the region, for each controller of the shards that the plan reads from.
    keys: Box<[Option<Keys>]>,
    outcomes: Box<[AtomicU64]>,
    failed: AtomicUsize,
    /// Written last: who sees a range counted sees its outcome.
    done: AtomicUsize,
    failures: Mutex<Failures>,
}

/// The errors of a plan's ranges, without their offsets and lengths.
#[derive(Default)]
struct Failures {
    single: BTreeMap<u32, Error>,
    /// Errors that many ranges ended with at a time.
    common: Vec<(Box<[u32]>, Error)>,
}

impl PlanState {
    pub(crate) fn new(
        entries: &[Entry],
        routes: Arc<ShardRoutes>,
        keys: Box<[Option<Keys>]>,
        options: BatchOptions,
    ) -> Self {
        let pending = Outcome::of_status(Outcome::PENDING).to_bits();
        Self {
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

    /// As many as there are numbers of ranges.
    pub(crate) fn ranges(&self) -> u32 {
        // A plan has no more, as was checked.
        self.entries.len() as u32
    }

    pub(crate) fn entry(&self, index: u32) -> (&Entry, &ShardRoute) {
        let entry = &self.entries[index as usize];
        let replica = self.choice(index).map_or(0, |choice| choice.replica);
        (entry, &self.routes.of(entry.shard)[replica])
    }

    /// The shard of a range, and the number of the replica that was tried last.
    pub(crate) fn replica(&self, index: usize) -> (u32, usize) {
        // A plan has at most 2^32 ranges, as was checked.
        let replica = self.choice(index as u32).map_or(0, |choice| choice.replica);
        (self.entries[index].shard, replica)
    }

    fn choice(&self, index: u32) -> Option<ReplicaChoice> {
        let choice = self.choices.get()?[index as usize].load(Ordering::Relaxed);
        Some(ReplicaChoice::from_bits(choice))
    }

    /// Chooses the replica that each range is read from. Ranges of one shard are spread over the
    /// first two of its replicas that are connected: the one with fewer bytes to send is taken.
    /// `loads` has the bytes that each controller is to send, or `None` if it is not connected.
    pub(crate) fn choose_replicas(&self, mut loads: Vec<Option<u64>>) {
        let choices = self.entries.iter().map(|entry| {
            let choice = self.best(entry.shard, 0, &loads).unwrap_or_default();
            let place = self.routes.of(entry.shard)[choice.replica].place;
            if let Some(load) = &mut loads[place] {
                *load += u64::from(entry.length);
            }
            AtomicU16::new(choice.to_bits())
        });
        // Done once, before any range is begun.
        let _ = self.choices.set(choices.collect());
    }

    /// The best replica of a shard that was not tried, be it connected or not.
    fn best(&self, shard: u32, tried: u8, loads: &[Option<u64>]) -> Option<ReplicaChoice> {
        let replicas = self.routes.of(shard).iter().enumerate();
        let untried = replicas.filter(|(replica, _)| tried & 1 << replica == 0);
        let connected = untried.clone().filter_map(|(replica, route)| {
            loads.get(route.place).copied().flatten().map(|load| (load, replica))
        });
        let best = connected.take(2).min_by_key(|&(load, _)| load).map(|(_, replica)| replica);
        let replica = best.or_else(|| untried.map(|(replica, _)| replica).next())?;
        Some(ReplicaChoice { replica, tried: tried | 1 << replica })
    }

    /// Replicas that were tried before the last one.
    pub(crate) fn earlier_replicas(&self, index: u32) -> u32 {
        self.choice(index).map_or(0, |choice| choice.tried.count_ones() - 1)
    }

    /// Has a range that failed read from another replica; false if each was tried, or its time is
    /// over.
    pub(crate) fn choose_again(&self, index: u32, now: Time, loads: &[Option<u64>]) -> bool {
        let Some(ReplicaChoice { tried, .. }) = self.choice(index) else { return false };
        let shard = self.entries[index as usize].shard;
        match self.best(shard, tried, loads) {
            Some(choice) if self.due.get().is_none_or(|&due| now < due) => {
                if let Some(choices) = self.choices.get() {
                    choices[index as usize].store(choice.to_bits(), Ordering::Relaxed);
                }
                true
            }
            _ => false,
        }
    }

    /// Whether a range that failed with this error may be read from another replica.
    pub(crate) fn has_alternative(&self, index: u32, error: &Error) -> bool {
        let is_its_fault = match error.kind() {
            ErrorKind::Cancelled => false,
            ErrorKind::Changed(_) | ErrorKind::Protocol(_) => true,
            _ => error.is_retryable(),
        };
        let replicas = self.routes.of(self.entries[index as usize].shard).len();
        let tried = self.choice(index).map(|choice| choice.tried.count_ones() as usize);
        is_its_fault && tried.is_some_and(|tried| tried < replicas)
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

    /// When the plan's deadline is over: so long after its first range came to its core.
    pub(crate) fn due(&self, now: Time, limit: Duration) -> Time {
        *self.due.get_or_init(|| now + limit)
    }

    /// Of the region, in the domain of a shard's controller.
    pub(crate) fn keys(&self, route: &ShardRoute) -> Keys {
        // They were looked up when the plan was submitted.
        self.keys[route.place].unwrap_or(Keys::NONE)
    }

    pub(crate) fn outcome(&self, index: usize) -> Outcome {
        // Who sees that the range has ended sees its bytes.
        Outcome::from_bits(self.outcomes[index].load(Ordering::Acquire))
    }

    pub(crate) fn progress(&self) -> PlanProgress {
        let done = self.done.load(Ordering::Acquire);
        let failed = self.failed.load(Ordering::Relaxed).min(done);
        PlanProgress { done, failed, total: self.len() }
    }

    /// The error of a range that failed.
    pub(crate) fn error(&self, index: usize) -> Option<Error> {
        let outcome = self.outcome(index);
        if outcome.is_ok() || outcome.is_pending() {
            return None;
        }
        let entry = &self.entries[index];
        let error = self.failures().of(index as u32);
        // A cancelled range has no error of its own.
        let error = error.unwrap_or_else(|| ErrorKind::Cancelled.into());
        let error = error.of_attempts(outcome.attempts.into());
        Some(error.of_range(entry.offset, entry.length.into()))
    }

    fn failures(&self) -> MutexGuard<'_, Failures> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the end of a range. Called once for each, under the host's lock.
    pub(crate) fn end(&self, index: u32, outcome: Outcome, error: Option<Error>) {
        if let Some(error) = error {
            self.failed.fetch_add(1, Ordering::Relaxed);
            self.failures().single.insert(index, error);
        }
        self.outcomes[index as usize].store(outcome.to_bits(), Ordering::Release);
        self.done.fetch_add(1, Ordering::Release);
    }

    /// Notes that ranges of which nothing was sent end with an error.
    pub(crate) fn end_unsent(&self, ranges: &[u32], error: &Error) {
        let outcome = Outcome::of_status(Outcome::status_of(error)).to_bits();
        if outcome as u16 != Outcome::CANCELLED {
            self.failures().common.push((ranges.into(), error.clone()));
        }
        self.failed.fetch_add(ranges.len(), Ordering::Relaxed);
        for &index in ranges {
            self.outcomes[index as usize].store(outcome, Ordering::Release);
        }
        self.done.fetch_add(ranges.len(), Ordering::Release);
    }
}

/// Where a range is read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ReplicaChoice {
    replica: usize,
    /// A bit for each replica that was tried, that one included.
    tried: u8,
}

impl ReplicaChoice {
    const fn to_bits(self) -> u16 {
        (self.replica as u16) << 8 | self.tried as u16
    }

    const fn from_bits(bits: u16) -> Self {
        Self { replica: (bits >> 8) as usize, tried: bits as u8 }
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
    use super::*;

    fn plan(entries: usize) -> PlanState {
        let entries: Vec<_> = (0..entries as u64)
            .map(|i| Entry { shard: 0, length: 10, offset: i * 10, dst: i * 10 })
            .collect();
        PlanState::new(&entries, Arc::default(), [].into(), BatchOptions::new())
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
        let mut routes = ShardRoutes::default();
        routes.push((0..3).map(|place| ShardRoute { namespace: 0, place }));
        let entries = [Entry { shard: 0, length: 10, offset: 0, dst: 0 }; 4];
        let plan = PlanState::new(&entries, Arc::new(routes), [].into(), BatchOptions::new());
        // The third is read only where another is gone.
        plan.choose_replicas(vec![Some(5), Some(0), Some(0)]);
        let place = |index| plan.entry(index).1.place;
        assert_eq!([0, 1, 2, 3].map(place), [1, 0, 1, 0]);
        assert!(!plan.has_alternative(0, &ErrorKind::Cancelled.into()));
        let mut tried = Vec::new();
        while plan.has_alternative(0, &lost()) {
            assert!(plan.choose_again(0, Time::ZERO, &[Some(0), None, Some(1)]));
            tried.push(place(0));
        }
        assert_eq!(tried, [0, 2]);
        assert!(!plan.choose_again(0, Time::ZERO, &[Some(0); 3]));
    }

    fn lost() -> Error {
        ErrorKind::ConnectionLost("by a test").into()
    }
}

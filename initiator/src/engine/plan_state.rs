//! A plan in flight, as its ticket and the cores share it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory::region::Keys;
use crate::types::error::{Error, ErrorKind};
use crate::types::plan::{Entry, Outcome, PlanProgress};

/// Where the cores find a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardRoute {
    /// The namespace, as its controller numbers it.
    pub(crate) namespace: usize,
    /// Bytes of the shard.
    pub(crate) size_bytes: u64,
    /// Number of the controller among those of the shards.
    pub(crate) place: usize,
}

/// What is known of a plan. Results are written under the host's lock and read without.
pub(crate) struct PlanState {
    entries: Box<[Entry]>,
    routes: Arc<[ShardRoute]>,
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
        routes: Arc<[ShardRoute]>,
        keys: Box<[Option<Keys>]>,
    ) -> Self {
        let pending = Outcome::of_status(Outcome::PENDING).to_bits();
        Self {
            entries: entries.into(),
            routes,
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

    pub(crate) fn entry(&self, index: u32) -> (&Entry, &ShardRoute) {
        let entry = &self.entries[index as usize];
        (entry, &self.routes[entry.shard as usize])
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
        PlanState::new(&entries, [].into(), [].into())
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

    fn lost() -> Error {
        ErrorKind::ConnectionLost("by a test").into()
    }
}

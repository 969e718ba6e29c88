//! Durations of batches, and of the time that threads waited for them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedrail_initiator::Host;

use crate::histogram::BatchHistogram;

/// Counters of a session's batches.
#[derive(Debug, Default)]
pub(crate) struct StallCounters {
    batches: AtomicU64,
    stalled_us: AtomicU64,
    latency: BatchHistogram,
}

impl StallCounters {
    /// Counts a batch that was accepted.
    pub(crate) fn submitted(&self) {
        self.batches.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the duration of a batch that has ended.
    pub(crate) fn ended(&self, duration: Duration) {
        self.latency.add(duration);
    }

    /// Calls `wait`, and adds its duration to the time that threads waited.
    pub(crate) fn during<T>(&self, wait: impl FnOnce() -> T) -> T {
        let start = Host::now();
        let result = wait();
        let stalled = Host::now().saturating_duration_since(start).as_micros();
        self.stalled_us.fetch_add(u64::try_from(stalled).unwrap_or(u64::MAX), Ordering::Relaxed);
        result
    }

    /// Returns the number of accepted batches.
    pub(crate) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
    }

    /// Returns the seconds that threads waited for batches, summed over all threads.
    pub(crate) fn stall_seconds(&self) -> f64 {
        self.stalled_us.load(Ordering::Relaxed) as f64 / 1e6
    }

    /// Returns the durations of batches.
    pub(crate) fn latency(&self) -> &BatchHistogram {
        &self.latency
    }
}

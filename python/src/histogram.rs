//! A log-linear histogram of durations, which threads update without a lock.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets per power of two, so that a bucket is at most a quarter of its durations wide.
const STEPS: u64 = 4;
/// Powers of two from 4 us on; durations from 2^28 us (268 s) on are in the last bucket.
const POWERS: usize = 26;
/// Number of buckets. Those below 4 us are one microsecond wide, and the last one has no end.
const BUCKETS: usize = STEPS as usize * (POWERS + 1) + 1;

/// Histogram of the durations of batches.
#[derive(Debug)]
pub(crate) struct BatchHistogram {
    counts: [AtomicU64; BUCKETS],
    sum_us: AtomicU64,
}

impl Default for BatchHistogram {
    fn default() -> Self {
        Self { counts: array::from_fn(|_| AtomicU64::new(0)), sum_us: AtomicU64::new(0) }
    }
}

impl BatchHistogram {
    /// Adds a duration to its bucket and to the sum.
    pub(crate) fn add(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(us)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// Returns the exclusive upper bound of each bucket in microseconds, except the last.
    pub(crate) fn edges_us() -> Vec<u64> {
        (0..BUCKETS - 1).map(end_us).collect()
    }

    /// Returns the number of durations in each bucket.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Returns the sum of all durations in seconds.
    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_us.load(Ordering::Relaxed) as f64 / 1e6
    }
}

/// Returns the bucket of a duration in microseconds.
fn bucket(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let power = us.ilog2() - STEPS.ilog2();
    let step = (us >> power) - STEPS;
    let bucket = STEPS * (u64::from(power) + 1) + step;
    (bucket as usize).min(BUCKETS - 1)
}

/// Returns the exclusive upper bound of a bucket in microseconds.
fn end_us(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    match power.checked_sub(1) {
        None => step + 1,
        Some(shift) => (STEPS + step + 1) << shift,
    }
}

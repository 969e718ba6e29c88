//! A log-linear histogram of durations, which threads add to without a lock.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of each power of two: durations are known to a quarter of themselves.
const STEPS: u64 = 4;
/// Powers of two from 4 us on; what takes longer than 2^28 us, 268 s, is in the last bucket.
const POWERS: usize = 26;
/// Buckets in all. Those below 4 us are one microsecond wide, and the last one has no end.
const BUCKETS: usize = STEPS as usize * (POWERS + 1) + 1;

/// How long batches took.
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
    /// Counts a duration in its bucket, and in the sum.
    pub(crate) fn add(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.counts[bucket(us)].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    /// The first microsecond behind each bucket but the last, which has no end.
    pub(crate) fn edges_us() -> Vec<u64> {
        (0..BUCKETS - 1).map(end_us).collect()
    }

    /// The number of durations in each bucket.
    pub(crate) fn counts(&self) -> Vec<u64> {
        self.counts.iter().map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// The sum of all durations.
    pub(crate) fn sum_seconds(&self) -> f64 {
        self.sum_us.load(Ordering::Relaxed) as f64 / 1e6
    }
}

/// The bucket of a duration in microseconds.
fn bucket(us: u64) -> usize {
    if us < STEPS {
        return us as usize;
    }
    let power = us.ilog2() - STEPS.ilog2();
    let step = (us >> power) - STEPS;
    let bucket = STEPS * (u64::from(power) + 1) + step;
    (bucket as usize).min(BUCKETS - 1)
}

/// The first microsecond behind a bucket.
fn end_us(bucket: usize) -> u64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    match power.checked_sub(1) {
        None => step + 1,
        Some(shift) => (STEPS + step + 1) << shift,
    }
}

//! Histograms of latencies, with two buckets for each power of two of microseconds.

use std::array;
use std::ops::AddAssign;
use std::time::Duration;

use super::io_counters::Counter;

/// Number of buckets with an upper bound; the highest bound is 16.8 s.
const BOUNDED: usize = 48;
const ALL: usize = BOUNDED + 1;

/// Latency of a command, with the bucket that counts it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latency {
    pub(crate) nanos: u64,
    bucket: usize,
}

/// Histogram that one core writes and any thread reads.
#[derive(Debug)]
pub(crate) struct LatencyCounters {
    buckets: [Counter; ALL],
    sum_nanos: Counter,
}

/// Values of a histogram, of one core or summed over several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LatencyStats {
    buckets: [u64; ALL],
    sum_nanos: u64,
}

impl Default for LatencyCounters {
    fn default() -> Self {
        Self { buckets: array::from_fn(|_| Counter::default()), sum_nanos: Counter::default() }
    }
}

impl Default for LatencyStats {
    fn default() -> Self {
        Self { buckets: [0; ALL], sum_nanos: 0 }
    }
}

impl Latency {
    #[inline]
    pub(crate) fn from_nanos(nanos: u64) -> Self {
        Self { nanos, bucket: bucket_of(nanos) }
    }
}

impl LatencyCounters {
    #[inline]
    pub(crate) fn count(&self, latency: Latency) {
        self.buckets[latency.bucket].add(1);
        self.sum_nanos.add(latency.nanos);
    }

    pub(crate) fn snapshot(&self) -> LatencyStats {
        LatencyStats {
            buckets: array::from_fn(|at| self.buckets[at].get()),
            sum_nanos: self.sum_nanos.get(),
        }
    }
}

impl LatencyStats {
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    pub(crate) fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// Upper bounds of the buckets in microseconds, each with the number of latencies up to it.
    pub(crate) fn cumulative(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut below = 0;
        self.buckets[..BOUNDED].iter().enumerate().map(move |(at, count)| {
            below += count;
            (bound_micros(at), below)
        })
    }
}

impl AddAssign for LatencyStats {
    fn add_assign(&mut self, other: Self) {
        for (bucket, more) in self.buckets.iter_mut().zip(other.buckets) {
            *bucket += more;
        }
        self.sum_nanos += other.sum_nanos;
    }
}

/// Index of the first bucket whose upper bound is at least `nanos`.
fn bucket_of(nanos: u64) -> usize {
    let micros = nanos.div_ceil(1000);
    if micros <= 2 {
        return usize::from(micros == 2);
    }
    // For e = `exponent`, one bucket ends at 2^e + 2^(e-1) µs, the next at 2^(e+1) µs.
    let above = micros - 1;
    let exponent = above.ilog2();
    let is_upper = above >> (exponent - 1) & 1;
    (2 * exponent as usize + is_upper as usize).min(BOUNDED)
}

fn bound_micros(bucket: usize) -> u64 {
    match bucket {
        0 | 1 => bucket as u64 + 1,
        _ => (3 + bucket as u64 % 2) << (bucket / 2 - 1),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_are_halves_of_powers_of_two() {
        let bounds: Vec<u64> = (0..BOUNDED).map(bound_micros).collect();
        assert_eq!(bounds[..10], [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
        assert_eq!(bounds[BOUNDED - 1], 1 << 24);
        assert!(bounds.is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn counts_are_cumulative() {
        let counters = LatencyCounters::default();
        for micros in [1, 3, 3, 1 << 30] {
            counters.count(Latency::from_nanos(micros * 1000));
        }
        let mut stats = counters.snapshot();
        stats += stats;
        let below: Vec<_> = stats.cumulative().take(4).collect();
        assert_eq!(below, [(1, 2), (2, 2), (3, 6), (4, 6)]);
        assert_eq!(stats.cumulative().last(), Some((1 << 24, 6)));
        assert_eq!(stats.count(), 8);
        assert_eq!(stats.sum(), Duration::from_micros(2 * (7 + (1 << 30))));
    }

    proptest! {
        #[test]
        fn each_latency_is_in_the_first_bucket_that_takes_it(nanos in any::<u64>(), shift in 0..64) {
            let nanos = nanos >> shift;
            let takes = |bucket: usize| u128::from(nanos) <= u128::from(bound_micros(bucket)) * 1000;
            let expected = (0..BOUNDED).find(|bucket| takes(*bucket)).unwrap_or(BOUNDED);
            prop_assert_eq!(bucket_of(nanos), expected);
        }
    }
}

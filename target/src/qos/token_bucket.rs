//! A token bucket that all cores share: one atomic number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rdma::Time;

/// Longest time whose unused tokens are kept. It bounds the burst of an idle host, and a
/// core that is late by less loses no tokens.
pub(super) const SLICE: Duration = Duration::from_millis(10);

/// Parts of a nanosecond in which a bucket counts, so that rounding costs less than 1 % of a rate
/// of 100,000,000 per second.
const PARTS: u64 = 16;
const PARTS_PER_SECOND: u64 = 1_000_000_000 * PARTS;
const SLICE_PARTS: u64 = SLICE.as_nanos() as u64 * PARTS;

/// Bucket of tokens that come at a constant rate, as the time until which they are spent.
///
/// Tokens are taken in turn: each taker gets the time from which its tokens are there, and waits
/// until then. A taker of more than there are goes into debt, which the next one waits for.
#[derive(Debug, Default)]
pub(super) struct TokenBucket {
    /// Tokens per second; 0 for no limit.
    rate: AtomicU64,
    /// Time until which all tokens are spent, in [`PARTS`] of a nanosecond.
    spent_until: AtomicU64,
}

impl TokenBucket {
    /// Sets the rate in tokens per second; 0 for no limit. Another rate forgives the debt.
    pub(super) fn set_rate(&self, rate: u64) {
        if self.rate.swap(rate, Ordering::Relaxed) != rate {
            self.spent_until.store(0, Ordering::Relaxed);
        }
    }

    /// Takes tokens, and returns the time from which they may be used; at most `now` if they are
    /// there already.
    pub(super) fn take(&self, now: Time, tokens: u64) -> Time {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate == 0 {
            return Time::ZERO;
        }
        let cost = tokens.saturating_mul(PARTS_PER_SECOND) / rate;
        let earliest = now.as_nanos().saturating_mul(PARTS).saturating_sub(SLICE_PARTS);
        let start = |spent_until: u64| spent_until.max(earliest);
        let spend = |spent_until| Some(start(spent_until).saturating_add(cost));
        let before = self.spent_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
        let start = start(before.unwrap_or_else(|unchanged| unchanged));
        Time::from_nanos(start.div_ceil(PARTS))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bucket(rate: u64) -> TokenBucket {
        let bucket = TokenBucket::default();
        bucket.set_rate(rate);
        bucket
    }

    #[test]
    fn a_bucket_without_a_rate_lets_everything_pass() {
        let bucket = TokenBucket::default();
        for _ in 0..3 {
            assert_eq!(bucket.take(Time::from_nanos(7), u64::MAX), Time::ZERO);
        }
    }

    #[test]
    fn the_tokens_of_one_slice_are_kept() {
        let (bucket, now) = (bucket(1_000), Time::from_nanos(5_000_000_000));
        // 10 tokens of the slice, and one that begins now.
        let at_once = (0..100).take_while(|_| bucket.take(now, 1) <= now).count();
        assert_eq!(at_once, 11);
        let next = bucket.take(now, 1);
        assert_eq!(next, now + Duration::from_millis(2), "the refused one took its turn");
    }

    #[test]
    fn a_command_larger_than_a_slice_passes_and_goes_into_debt() {
        let (bucket, now) = (bucket(1 << 20), Time::from_nanos(5_000_000_000));
        assert!(bucket.take(now, 16 << 20) <= now);
        assert_eq!(bucket.take(now, 1), now + (Duration::from_secs(16) - SLICE));
        bucket.set_rate(2 << 20);
        assert!(bucket.take(now, 1) <= now, "another rate forgives the debt");
    }

    #[test]
    fn extreme_numbers_do_not_overflow() {
        let bucket = bucket(1);
        let last = Time::from_nanos(u64::MAX);
        for now in [Time::ZERO, last] {
            bucket.take(now, u64::MAX);
            bucket.take(now, u64::MAX);
        }
    }

    proptest! {
        /// Each taker waits for its turn. In any window at most its tokens, those of one slice and
        /// one taker's pass.
        #[test]
        fn no_window_has_more_than_its_tokens(
            rate in 1_000_u64..10_000_000,
            takers in prop::collection::vec((0_u64..20_000_000, 1_u64..100_000), 1..200),
        ) {
            let bucket = bucket(rate);
            let mut now = Time::from_nanos(3_000_000_000);
            let mut passed: Vec<(Time, u64)> = Vec::new();
            for (pause_nanos, tokens) in takers {
                now = now + Duration::from_nanos(pause_nanos);
                now = now.max(bucket.take(now, tokens));
                passed.push((now, tokens));
            }
            for from in 0..passed.len() {
                let mut sum = 0;
                for to in from..passed.len() {
                    let nanos = passed[to].0.as_nanos() - passed[from].0.as_nanos();
                    let window = nanos + SLICE.as_nanos() as u64;
                    let may = u128::from(rate) * u128::from(window) / 1_000_000_000;
                    prop_assert!(u128::from(sum) <= may + u128::from(takers_rounding(rate, to - from)), "{sum} of {may}");
                    sum += passed[to].1;
                }
            }
        }

        /// A taker waits for those before it, and for nobody after it.
        #[test]
        fn the_whole_rate_is_used(rate in 1_000_u64..10_000_000, tokens in 1_u64..10_000) {
            let bucket = bucket(rate);
            let start = Time::from_nanos(3_000_000_000);
            let mut now = start;
            for _ in 0..100 {
                now = now.max(bucket.take(now, tokens));
            }
            let took = (now.as_nanos() - start.as_nanos()) as u128;
            let most = 99 * u128::from(tokens) * 1_000_000_000 / u128::from(rate) + 1;
            prop_assert!(took <= most, "{took} of {most}");
        }
    }

    /// Tokens that come in the time by which this many costs were rounded down.
    fn takers_rounding(rate: u64, takers: usize) -> u64 {
        rate * takers as u64 / PARTS_PER_SECOND + 1
    }
}

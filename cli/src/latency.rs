//! Histogram of the durations of operations.

use core::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Longest duration recorded, in nanoseconds: longer ones count as one minute.
const MAX_NS: u64 = 60_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// Histogram of durations, accurate to three significant digits.
#[derive(Clone, Debug)]
pub(crate) struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_NS, SIGNIFICANT_DIGITS);
        Self(histogram.expect("constant bounds, valid by the histogram's rules"))
    }
}

impl Latency {
    pub(crate) fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("all have the same bounds");
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    /// Duration in microseconds that `percent` of the operations did not exceed.
    pub(crate) fn percentile_us(&self, percent: f64) -> f64 {
        self.0.value_at_percentile(percent) as f64 / 1000.0
    }

    pub(crate) fn max_us(&self) -> f64 {
        self.0.max() as f64 / 1000.0
    }

    /// Percentiles in nanoseconds, named as in fio's output.
    pub(crate) fn to_json(&self) -> Value {
        let percentile = |percent| self.0.value_at_percentile(percent);
        json!({
            "min": if self.0.is_empty() { 0 } else { self.0.min() },
            "mean": self.0.mean(),
            "max": self.0.max(),
            "percentile": {
                "50.0": percentile(50.0),
                "90.0": percentile(90.0),
                "99.0": percentile(99.0),
                "99.9": percentile(99.9),
            },
        })
    }

    /// Formats percentiles as one line, in microseconds.
    pub(crate) fn to_text(&self) -> String {
        format!(
            "p50={:.1} p90={:.1} p99={:.1} p99.9={:.1} max={:.1}",
            self.percentile_us(50.0),
            self.percentile_us(90.0),
            self.percentile_us(99.0),
            self.percentile_us(99.9),
            self.max_us(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_and_added() {
        let mut latency = Latency::default();
        (1..=99).for_each(|us| latency.record(Duration::from_micros(us)));
        let mut slow = Latency::default();
        slow.record(Duration::from_secs(3600));
        latency.add(&slow);
        assert_eq!(latency.count(), 100);
        assert!((49.0..51.0).contains(&latency.percentile_us(50.0)));
        assert!(latency.max_us() >= 59e6);
    }

    #[test]
    fn nothing_is_no_number_problem() {
        let json = Latency::default().to_json();
        assert_eq!((&json["min"], &json["max"]), (&json!(0), &json!(0)));
        assert_eq!(json["mean"], 0.0);
    }
}

//! Times of saves and loads, and the rates that follow from them.

use serde_json::{Value, json};

/// Times of one save or load, in seconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RankTimes {
    /// Time from the signal to begin to the end of the last rank, and of a save with a commit to
    /// its end.
    pub(super) whole: f64,
    pub(super) ranks: Vec<f64>,
}

/// Median, least and largest of some numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl RankTimes {
    /// Number and seconds of the rank that took longest.
    pub(super) fn slowest(&self) -> Option<(usize, f64)> {
        self.ranks.iter().copied().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// Number and seconds of the rank that took the least time.
    pub(super) fn fastest(&self) -> Option<(usize, f64)> {
        self.ranks.iter().copied().enumerate().min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// Bytes per second, in 10^9.
    pub(super) fn gb_per_second(&self, bytes: u64) -> f64 {
        bytes as f64 / self.whole.max(1e-9) / 1e9
    }
}

impl Spread {
    /// `None` if there are no numbers.
    pub(super) fn of(numbers: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = numbers.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
            _ => sorted[middle],
        };
        Some(Self { median, min, max })
    }

    pub(super) fn to_json(self) -> Value {
        json!({ "median": self.median, "min": self.min, "max": self.max })
    }
}

/// Returns the median of the ratios of rates, round by round; above 1 where `own` was faster.
pub(super) fn median_ratio(own: &[RankTimes], other: &[RankTimes]) -> Option<f64> {
    let ratios = own.iter().zip(other).map(|(own, other)| other.whole / own.whole.max(1e-9));
    Spread::of(ratios).map(|spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(whole: f64, ranks: &[f64]) -> RankTimes {
        RankTimes { whole, ranks: ranks.to_vec() }
    }

    #[test]
    fn ranks_are_told_apart() {
        let one = times(2.0, &[1.5, 1.0, 1.75]);
        assert_eq!((one.slowest(), one.fastest()), (Some((2, 1.75)), Some((1, 1.0))));
        assert_eq!(one.gb_per_second(4_000_000_000), 2.0);
        assert_eq!(times(1.0, &[]).slowest(), None);
    }

    #[test]
    fn the_middle_of_an_even_number_is_between_two() {
        let of = |numbers: &[f64]| Spread::of(numbers.iter().copied()).map(|one| one.median);
        assert_eq!((of(&[3.0, 1.0]), of(&[9.0, 1.0, 2.0]), of(&[])), (Some(2.0), Some(2.0), None));
    }

    #[test]
    fn a_ratio_is_of_the_rounds_that_both_had() {
        let own = [times(1.0, &[]), times(2.0, &[])];
        let other = [times(2.0, &[]), times(2.0, &[]), times(9.0, &[])];
        assert_eq!(median_ratio(&own, &other), Some(1.5));
        assert_eq!(median_ratio(&own, &[]), None);
    }
}

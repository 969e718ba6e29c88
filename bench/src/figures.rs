//! Measured figures: a name, and a value for each run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// All measured figures. A name consists of section, subject and unit, with slashes between them.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(transparent)]
pub(crate) struct Figures(BTreeMap<String, Vec<f64>>);

/// Median and range of some values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Figures {
    /// Adds the value of a run to a figure.
    pub(crate) fn add(&mut self, name: impl Into<String>, value: f64) {
        self.0.entry(name.into()).or_default().push(value);
    }

    /// Values of a figure, one for each run; empty if no run measured it.
    pub(crate) fn values(&self, name: &str) -> &[f64] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn spread(&self, name: &str) -> Option<Spread> {
        Spread::of(self.values(name))
    }

    /// Divides one figure by another, run by run, so that the spread is that of the ratios.
    pub(crate) fn ratios(&self, name: &str, by: &str) -> Vec<f64> {
        quotients(self.values(name), self.values(by))
    }

    /// Returns the lower of two figures, run by run.
    pub(crate) fn lower(&self, one: &str, other: &str) -> Vec<f64> {
        self.values(one).iter().zip(self.values(other)).map(|(a, b)| a.min(*b)).collect()
    }

    /// Copies the figures of a section from `other`, unless there are some of that section already.
    pub(crate) fn keep_section(&mut self, section: &str, other: &Self) {
        let belongs = |name: &str| name.split('/').next() == Some(section);
        if self.0.keys().any(|name| belongs(name)) {
            return;
        }
        let kept = other.0.iter().filter(|(name, _)| belongs(name));
        self.0.extend(kept.map(|(name, values)| (name.clone(), values.clone())));
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, Spread)> {
        self.0.iter().filter_map(|(name, values)| Some((name.as_str(), Spread::of(values)?)))
    }
}

impl Spread {
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: sorted[(sorted.len() - 1) / 2], min, max })
    }
}

/// Divides values by others, run by run. Runs with a divisor of 0 are left out.
pub(crate) fn quotients(values: &[f64], by: &[f64]) -> Vec<f64> {
    let pairs = values.iter().zip(by).filter(|(_, by)| **by != 0.0);
    pairs.map(|(value, by)| value / by).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> Figures {
        let mut figures = Figures::default();
        for (fast, slow) in [(10.0, 5.0), (8.0, 2.0), (9.0, 3.0)] {
            figures.add("us/fast", fast);
            figures.add("ceilings/slow", slow);
        }
        figures
    }

    #[test]
    fn a_ratio_is_that_of_each_run() {
        let ratios = figures().ratios("us/fast", "ceilings/slow");
        assert_eq!(ratios, [2.0, 4.0, 3.0]);
        assert_eq!(Spread::of(&ratios), Some(Spread { median: 3.0, min: 2.0, max: 4.0 }));
        assert_eq!(Spread::of(&figures().ratios("us/fast", "never measured")), None);
    }

    #[test]
    fn only_unmeasured_sections_are_kept() {
        let mut fresh = Figures::default();
        fresh.add("us/fast", 1.0);
        fresh.keep_section("us", &figures());
        fresh.keep_section("ceilings", &figures());
        assert_eq!(fresh.values("us/fast"), [1.0]);
        assert_eq!(fresh.values("ceilings/slow"), [5.0, 2.0, 3.0]);
    }
}

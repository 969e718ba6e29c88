//! Counts of events, by name.

use std::collections::BTreeMap;
use std::fmt;

/// Counts by name. The names sort into groups: "fault: ...", "recovery: ...", "work: ...".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals(BTreeMap<&'static str, u64>);

impl Totals {
    /// Counts something, also where the count is zero.
    pub fn add(&mut self, what: &'static str, count: u64) {
        *self.0.entry(what).or_default() += count;
    }

    /// Adds all counts of another.
    pub fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|(what, &count)| self.add(what, count));
    }

    /// How often something happened.
    pub fn get(&self, what: &str) -> u64 {
        self.0.get(what).copied().unwrap_or(0)
    }

    /// The events that were counted zero times.
    pub fn missing(&self) -> Vec<&'static str> {
        self.0.iter().filter(|(_, count)| **count == 0).map(|(&what, _)| what).collect()
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(what, count)| writeln!(f, "{count:>14}  {what}"))
    }
}

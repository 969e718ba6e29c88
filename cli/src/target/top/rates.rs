//! Rates of a target's namespaces per second, calculated from two samples of its counters.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::output::printable;
use crate::size::human;
use crate::target::items;

/// Column headings of the namespaces.
pub(super) const HEADINGS: [&str; 10] = [
    "Subsystem",
    "NSID",
    "Name",
    "Reads/s",
    "Read/s",
    "Latency",
    "Writes/s",
    "Written/s",
    "Latency",
    "Errors/s",
];

/// Counters of all namespaces at one time.
#[derive(Debug, Default)]
pub(super) struct IoSample {
    nanos: u64,
    namespaces: BTreeMap<(String, u64), NamespaceCounts>,
}

#[derive(Clone, Debug, Default)]
struct NamespaceCounts {
    name: String,
    reads: CommandCounts,
    writes: CommandCounts,
    errors: u64,
}

/// Counters of the reads or the writes of a namespace.
#[derive(Clone, Copy, Debug, Default)]
struct CommandCounts {
    commands: u64,
    bytes: u64,
    latency_nanos: u64,
}

/// Rates of a namespace between two samples.
#[derive(Clone, Debug)]
pub(super) struct NamespaceRates {
    nqn: String,
    nsid: u64,
    name: String,
    reads: CommandRates,
    writes: CommandRates,
    errors_per_second: f64,
}

#[derive(Clone, Copy, Debug)]
struct CommandRates {
    per_second: f64,
    bytes_per_second: f64,
    /// Mean time from the arrival of a command to its completion; `None` without commands.
    latency_us: Option<f64>,
}

impl IoSample {
    /// Parses a result of `bdev_get_iostat`.
    pub(super) fn of(iostat: &Value) -> Self {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let counts = |one: &Value, [commands, bytes, latency]: [&str; 3]| CommandCounts {
            commands: number(&one[commands]),
            bytes: number(&one[bytes]),
            latency_nanos: number(&one[latency]),
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let namespace = |one: &Value| {
            let namespace = NamespaceCounts {
                name: text(&one["name"]),
                reads: counts(one, ["num_read_ops", "bytes_read", "read_latency_ticks"]),
                writes: counts(one, ["num_write_ops", "bytes_written", "write_latency_ticks"]),
                errors: number(&one["io_error"]),
            };
            ((text(&one["nqn"]), number(&one["nsid"])), namespace)
        };
        Self {
            nanos: number(&iostat["ticks"]),
            namespaces: items(&iostat["bdevs"]).map(namespace).collect(),
        }
    }

    /// Seconds from an earlier sample to this one, greater than 0.
    pub(super) fn seconds_since(&self, earlier: &Self) -> f64 {
        self.nanos.saturating_sub(earlier.nanos).max(1) as f64 / 1e9
    }

    /// Returns the rates of each namespace since an earlier sample, largest number of bytes first.
    pub(super) fn rates_since(&self, earlier: &Self) -> Vec<NamespaceRates> {
        let seconds = self.seconds_since(earlier);
        let rates = |(key, now): (&(String, u64), &NamespaceCounts)| {
            let none = NamespaceCounts::default();
            let before = earlier.namespaces.get(key).unwrap_or(&none);
            NamespaceRates {
                nqn: key.0.clone(),
                nsid: key.1,
                name: now.name.clone(),
                reads: now.reads.rates_since(before.reads, seconds),
                writes: now.writes.rates_since(before.writes, seconds),
                errors_per_second: now.errors.saturating_sub(before.errors) as f64 / seconds,
            }
        };
        let mut all: Vec<_> = self.namespaces.iter().map(rates).collect();
        all.sort_by_key(|one| Reverse(one.bytes_per_second() as u64));
        all
    }
}

impl CommandCounts {
    /// Rates since an earlier sample. The counters of a namespace that was removed and added again
    /// start from 0, so its rates are 0 until the next sample.
    fn rates_since(self, earlier: Self, seconds: f64) -> CommandRates {
        let commands = self.commands.saturating_sub(earlier.commands);
        let latency = self.latency_nanos.saturating_sub(earlier.latency_nanos);
        CommandRates {
            per_second: commands as f64 / seconds,
            bytes_per_second: self.bytes.saturating_sub(earlier.bytes) as f64 / seconds,
            latency_us: (commands > 0).then(|| latency as f64 / commands as f64 / 1e3),
        }
    }
}

impl CommandRates {
    fn cells(self) -> [String; 3] {
        let latency = self.latency_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1} us"));
        [format!("{:.0}", self.per_second), human(self.bytes_per_second as u64), latency]
    }
}

impl NamespaceRates {
    fn bytes_per_second(&self) -> f64 {
        self.reads.bytes_per_second + self.writes.bytes_per_second
    }

    /// Cells of the table row, in the order of [`HEADINGS`].
    pub(super) fn row(&self) -> Vec<String> {
        let mut row = vec![printable(&self.nqn), self.nsid.to_string(), printable(&self.name)];
        row.extend(self.reads.cells());
        row.extend(self.writes.cells());
        row.push(format!("{:.0}", self.errors_per_second));
        row
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "nqn": self.nqn,
            "nsid": self.nsid,
            "name": self.name,
            "reads_per_second": self.reads.per_second,
            "read_bytes_per_second": self.reads.bytes_per_second,
            "read_latency_us": self.reads.latency_us,
            "writes_per_second": self.writes.per_second,
            "written_bytes_per_second": self.writes.bytes_per_second,
            "write_latency_us": self.writes.latency_us,
            "errors_per_second": self.errors_per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: u64, namespaces: &[(u64, u64)]) -> IoSample {
        let bdev = |&(nsid, reads): &(u64, u64)| {
            json!({
                "name": "n", "nqn": "nqn.a", "nsid": nsid, "num_read_ops": reads,
                "bytes_read": reads * 4096, "read_latency_ticks": reads * 2_500,
                "num_write_ops": 0, "bytes_written": 0, "write_latency_ticks": 0, "io_error": reads,
            })
        };
        let bdevs: Vec<_> = namespaces.iter().map(bdev).collect();
        IoSample::of(&json!({ "ticks": seconds * 1_000_000_000, "bdevs": bdevs }))
    }

    #[test]
    fn rates_are_those_of_the_time_between() {
        let first = sample(10, &[(1, 1_000), (2, 7)]);
        let second = sample(12, &[(1, 3_000), (2, 7), (3, 4_000)]);
        let rates = second.rates_since(&first);
        let found: Vec<_> = rates.iter().map(|one| (one.nsid, one.reads.per_second)).collect();
        assert_eq!(found, [(3, 2_000.0), (1, 1_000.0), (2, 0.0)], "the busiest is the first");
        let row = rates[1].row();
        let expected = ["nqn.a", "1", "n", "1000", "3.91 MiB", "2.5 us", "0", "0 B", "-", "1000"];
        assert_eq!(row, expected);
        assert_eq!(rates[2].to_json()["read_latency_us"], Value::Null);
    }

    #[test]
    fn a_namespace_that_counts_from_0_again_has_no_rates() {
        let rates = sample(2, &[(1, 5)]).rates_since(&sample(1, &[(1, 1_000)]));
        assert_eq!((rates[0].reads.per_second, rates[0].reads.latency_us), (0.0, None));
        let none = sample(1, &[]).rates_since(&sample(1, &[(1, 1)]));
        assert!(none.is_empty(), "it was removed");
    }
}

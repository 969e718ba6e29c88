//! The counters in the text format of OpenMetrics 1.0, which Prometheus reads.
//!
//! Names and help of counters follow from their declarations ([`rdma::CounterSet`]); what is no
//! counter is declared in [`Exposition::of`].

use std::fmt::Write as _;

use rdma::{CounterInfo, CounterSet};

use super::io_counters::IoStats;
use super::latency::LatencyStats;
use super::namespace_io::{NamespaceIoStats, NamespaceStats};
use super::snapshot::{PoolStats, Stats, SystemCallStats};

/// The media type of the text.
pub(crate) const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What storage engines count of I/O: of all subsystems together.
const OF_ENGINES: [&str; 7] = [
    "direct",
    "bounced",
    "cached",
    "cached_read_bytes",
    "mapped_read_bytes",
    "buffered_read_bytes",
    "direct_read_bytes",
];

/// All that is told of a target.
pub(crate) struct TargetSnapshot {
    pub(crate) stats: Stats,
    /// How long the turns of each core took that did something.
    pub(crate) turns: Vec<LatencyStats>,
    pub(crate) subsystems: Vec<SubsystemSnapshot>,
}

/// What is told of a subsystem.
pub(crate) struct SubsystemSnapshot {
    pub(crate) nqn: String,
    pub(crate) io: IoStats,
    pub(crate) namespaces: Vec<NamespaceSnapshot>,
}

/// What is told of a namespace.
pub(crate) struct NamespaceSnapshot {
    pub(crate) nsid: u32,
    pub(crate) name: String,
    pub(crate) size_bytes: u64,
    pub(crate) read_errors: u64,
    pub(crate) write_errors: u64,
    pub(crate) write_back_failed: bool,
    pub(crate) shrank: bool,
    /// Nothing where there was no I/O yet.
    pub(crate) io: Option<NamespaceIoStats>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

impl TargetSnapshot {
    /// The text, which ends with `# EOF`.
    pub(crate) fn to_text(&self) -> String {
        let mut exposition = Exposition::default();
        exposition.of_target(&self.stats);
        exposition.of_cores(&self.turns);
        exposition.of_subsystems(&self.subsystems);
        exposition.of_namespaces(&self.subsystems);
        exposition.of_peers(&self.stats);
        exposition.0 += "# EOF\n";
        exposition.0
    }
}

/// The text so far.
#[derive(Default)]
struct Exposition(String);

type Label<'a> = (&'static str, &'a str);

impl Exposition {
    fn of_target(&mut self, stats: &Stats) {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        self.family(MetricKind::Info, "feedrail_build", "The version of the target.");
        self.sample("feedrail_build_info", &version, 1);
        self.family(MetricKind::Gauge, "feedrail_uptime_seconds", "Time since the target started.");
        let uptime = format_args!("{}.{:03}", stats.uptime_ms / 1000, stats.uptime_ms % 1000);
        self.sample("feedrail_uptime_seconds", &[], uptime);
        let help = "Resident memory of the process, pool included.";
        self.gauge("feedrail_resident_memory_bytes", help, stats.resident_bytes);
        let help = "Connected controllers, discovery controllers included.";
        self.gauge("feedrail_associations", help, stats.associations);
        let help = "Connections (queues), those of admin queues included.";
        self.gauge("feedrail_connections", help, stats.connections);
        let help = "Requests of connection management that were accepted.";
        self.counter("feedrail_connections_accepted", help, stats.connections_accepted);
        let help = "Requests of connection management that were rejected.";
        self.counter("feedrail_connections_rejected", help, stats.connections_rejected);
        self.counters("feedrail_io", &stats.io, |_| true);
        self.counters("feedrail_network", &stats.network, |counter| {
            // They are among the system calls.
            !["send_calls", "receive_calls"].contains(&counter.name)
        });
        let help = "System calls of the threads that serve hosts, by kind.";
        self.family(MetricKind::Counter, "feedrail_system_calls", help);
        for (counter, value) in SystemCallStats::values(&stats.system_calls) {
            self.sample("feedrail_system_calls_total", &[("kind", counter.name)], value);
        }
        let PoolStats { bytes, used_bytes, waits } = stats.pool;
        self.gauge("feedrail_pool_bytes", "Size of the buffer pool.", bytes);
        let help = "Bytes of the buffer pool that requests have now.";
        self.gauge("feedrail_pool_used_bytes", help, used_bytes);
        let help = "Requests that had to wait for a buffer.";
        self.counter("feedrail_pool_waits", help, waits);
    }

    fn of_cores(&mut self, turns: &[LatencyStats]) {
        let name = "feedrail_turn_seconds";
        let help = "Time that a thread which serves hosts took for a turn with work in it.";
        self.family(MetricKind::Histogram, name, help);
        for (core, turns) in turns.iter().enumerate() {
            self.histogram(name, &[("core", &core.to_string())], turns);
        }
    }

    fn of_subsystems(&mut self, subsystems: &[SubsystemSnapshot]) {
        let counters = IoStats::COUNTERS.iter().enumerate();
        for (at, counter) in counters.filter(|(_, counter)| !OF_ENGINES.contains(&counter.name)) {
            let name = format!("feedrail_subsystem_{}", counter.name);
            self.family(MetricKind::Counter, &name, counter.help);
            for SubsystemSnapshot { nqn, io, .. } in subsystems {
                let value = io.values().nth(at).map_or(0, |(_, value)| value);
                self.sample(&format!("{name}_total"), &[("nqn", nqn)], value);
            }
        }
    }

    fn of_namespaces(&mut self, subsystems: &[SubsystemSnapshot]) {
        let each =
            |exposition: &mut Self,
             sample: &dyn Fn(&mut Self, [Label<'_>; 3], &NamespaceSnapshot)| {
                for SubsystemSnapshot { nqn, namespaces, .. } in subsystems {
                    for namespace in namespaces {
                        let nsid = namespace.nsid.to_string();
                        let labels =
                            [("nqn", nqn.as_str()), ("nsid", &nsid), ("name", &namespace.name)];
                        sample(exposition, labels, namespace);
                    }
                }
            };
        let name = "feedrail_namespace_size_bytes";
        self.family(MetricKind::Gauge, name, "Size of the namespace.");
        each(self, &|exposition, labels, namespace| {
            exposition.sample(name, &labels, namespace.size_bytes);
        });
        let help = "Commands that failed because of the file or device, by what they did to it.";
        self.family(MetricKind::Counter, "feedrail_namespace_storage_errors", help);
        each(self, &|exposition, [nqn, nsid, name], namespace| {
            let errors = [("read", namespace.read_errors), ("write", namespace.write_errors)];
            for (operation, count) in errors {
                let labels = [nqn, nsid, name, ("operation", operation)];
                exposition.sample("feedrail_namespace_storage_errors_total", &labels, count);
            }
        });
        let name = "feedrail_namespace_write_back_failed";
        let help = "1 if acknowledged writes were lost, so that it takes no more.";
        self.family(MetricKind::Gauge, name, help);
        each(self, &|exposition, labels, namespace| {
            exposition.sample(name, &labels, u8::from(namespace.write_back_failed));
        });
        let name = "feedrail_namespace_shrank";
        let help = "1 if its file was cut, so that commands beyond the new end fail.";
        self.family(MetricKind::Gauge, name, help);
        each(self, &|exposition, labels, namespace| {
            exposition.sample(name, &labels, u8::from(namespace.shrank));
        });
        for (at, counter) in NamespaceStats::COUNTERS.iter().enumerate() {
            let name = format!("feedrail_namespace_{}", counter.name);
            self.family(MetricKind::Counter, &name, counter.help);
            each(self, &|exposition, labels, namespace| {
                let values = namespace.io.as_ref().map(|io| io.counters);
                if let Some((_, value)) = values.and_then(|values| values.values().nth(at)) {
                    exposition.sample(&format!("{name}_total"), &labels, value);
                }
            });
        }
        type OfStats = fn(&NamespaceIoStats) -> &LatencyStats;
        let latencies: [(&str, OfStats); 2] =
            [("Read", |io| &io.reads), ("Write", |io| &io.writes)];
        for (command, of) in latencies {
            let name = format!("feedrail_namespace_{}_seconds", command.to_lowercase());
            let help = format!("Time from the arrival of a {command} command to its response.");
            self.family(MetricKind::Histogram, &name, &help);
            each(self, &|exposition, labels, namespace| {
                if let Some(io) = &namespace.io {
                    exposition.histogram(&name, &labels, of(io));
                }
            });
        }
    }

    /// The samples of a histogram.
    fn histogram(&mut self, name: &str, labels: &[Label<'_>], stats: &LatencyStats) {
        let bucket = format!("{name}_bucket");
        for (micros, below) in stats.cumulative() {
            let bound = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
            self.sample(&bucket, &[labels, &[("le", &bound)]].concat(), below);
        }
        self.sample(&bucket, &[labels, &[("le", "+Inf")]].concat(), stats.count());
        self.sample(&format!("{name}_count"), labels, stats.count());
        let sum = stats.sum();
        let seconds = format_args!("{}.{:09}", sum.as_secs(), sum.subsec_nanos());
        self.sample(&format!("{name}_sum"), labels, seconds);
    }

    /// Of the peers with the most errors.
    fn of_peers(&mut self, stats: &Stats) {
        let name = "feedrail_peer_commands_failed";
        let help = "Commands of the peer that failed for another reason than storage.";
        self.family(MetricKind::Counter, name, help);
        for peer in &stats.peer_errors {
            let labels = [("peer", peer.peer.as_str())];
            self.sample(&format!("{name}_total"), &labels, peer.commands_failed);
        }
        let name = "feedrail_peer_connections_lost";
        let help = "Connections that ended because the peer broke a rule or went silent.";
        self.family(MetricKind::Counter, name, help);
        for peer in &stats.peer_errors {
            let labels = [("peer", peer.peer.as_str())];
            self.sample(&format!("{name}_total"), &labels, peer.connections_lost);
        }
    }

    /// Those of a set that are wanted, one family each.
    fn counters<S: CounterSet>(
        &mut self,
        prefix: &str,
        set: &S,
        wanted: impl Fn(&CounterInfo) -> bool,
    ) {
        for (counter, value) in set.values().filter(|(counter, _)| wanted(counter)) {
            self.counter(&format!("{prefix}_{}", counter.name), counter.help, value);
        }
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(MetricKind::Counter, name, help);
        self.sample(&format!("{name}_total"), &[], value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(MetricKind::Gauge, name, help);
        self.sample(name, &[], value);
    }

    /// The lines before the samples of a family. Its unit is the end of its name.
    fn family(&mut self, kind: MetricKind, name: &str, help: &str) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
            MetricKind::Info => "info",
        };
        let units = ["bytes", "seconds"];
        let unit = units.into_iter().find(|unit| name.rsplit('_').next() == Some(*unit));
        let _ = writeln!(self.0, "# TYPE {name} {kind}");
        if let Some(unit) = unit {
            let _ = writeln!(self.0, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP {name} {}", escaped(help));
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: impl std::fmt::Display) {
        self.0 += name;
        for (at, (label, value)) in labels.iter().enumerate() {
            let opening = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{opening}{label}=\"{}\"", escaped(value));
        }
        let closing = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{closing} {value}");
    }
}

/// As it stands in a label's value or in help.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> TargetSnapshot {
        let namespace = NamespaceSnapshot {
            nsid: 3,
            name: "a \"b\"\\\nc".into(),
            size_bytes: 4096,
            read_errors: 5,
            write_errors: 0,
            write_back_failed: true,
            shrank: false,
            io: Some(NamespaceIoStats::default()),
        };
        TargetSnapshot {
            stats: Stats { uptime_ms: 61_007, ..Stats::default() },
            turns: vec![LatencyStats::default(); 2],
            subsystems: vec![SubsystemSnapshot {
                nqn: "nqn.2026-01.io.feedrail:t".into(),
                io: IoStats { read_bytes: 7, ..IoStats::default() },
                namespaces: vec![namespace],
            }],
        }
    }

    #[test]
    fn values_are_in_base_units_with_escaped_labels() {
        let text = snapshot().to_text();
        for line in [
            "# TYPE feedrail_uptime_seconds gauge\n# UNIT feedrail_uptime_seconds seconds\n",
            "\nfeedrail_uptime_seconds 61.007\n",
            "\nfeedrail_subsystem_read_bytes_total{nqn=\"nqn.2026-01.io.feedrail:t\"} 7\n",
            "{nqn=\"nqn.2026-01.io.feedrail:t\",nsid=\"3\",name=\"a \\\"b\\\"\\\\\\nc\",operation=\"read\"} 5\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(text.ends_with("\n# EOF\n"));
    }

    #[test]
    fn what_engines_count_is_counted() {
        let names: Vec<_> = IoStats::COUNTERS.iter().map(|counter| counter.name).collect();
        assert!(OF_ENGINES.iter().all(|name| names.contains(name)));
        assert!(!snapshot().to_text().contains("feedrail_subsystem_direct"));
    }

    /// A family is declared once, before its samples, and no other sample has its name.
    #[test]
    fn families_are_declared_once() {
        let text = snapshot().to_text();
        let mut declared = std::collections::BTreeSet::new();
        let mut current = "";
        for line in text.lines().filter(|line| *line != "# EOF") {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().expect("a name");
                assert!(declared.insert(current), "{current}");
            } else if let Some(rest) = line.strip_prefix("# ") {
                assert_eq!(rest.split(' ').nth(1), Some(current));
            } else {
                assert!(line.starts_with(current), "{line}");
            }
        }
    }
}

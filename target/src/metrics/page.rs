//! Metrics page for Prometheus.
//!
//! Names and help texts of counters come from their declarations ([`rdma::CounterSet`]); other
//! metrics are declared here. Unused namespaces, and subsystems without a Connect command so far,
//! have few or no samples, since there may be tens of thousands of them.

use rdma::{CounterInfo, CounterSet};

use super::authentications::AuthCount;
use super::exposition::{Exposition, Label, MetricKind, MetricsFormat};
use super::io_counters::{IoStats, SubsystemIoStats};
use super::latency::LatencyStats;
use super::namespace_io::{NamespaceIoStats, NamespaceStats};
use super::quotas::QuotaSnapshots;
use super::snapshot::{CacheStats, PoolStats, Stats, SystemCallStats};
use crate::config::MetricsDetail;

/// Counters of [`IoStats`] that storage engines count for all subsystems together.
const OF_ENGINES: [&str; 8] = [
    "direct",
    "bounced",
    "cached",
    "cache_misses",
    "cached_read_bytes",
    "mapped_read_bytes",
    "buffered_read_bytes",
    "direct_read_bytes",
];

/// Counters that are shown for writable namespaces only.
const OF_WRITERS: [&str; 5] = ["writes", "written_bytes", "flushes", "write_zeroes", "deallocates"];

pub(crate) struct TargetSnapshot {
    pub(crate) stats: Stats,
    /// Durations of the turns of each core's loop that did work.
    pub(crate) turns: Vec<LatencyStats>,
    pub(crate) subsystems: Vec<SubsystemSnapshot>,
    pub(crate) authentications: Vec<AuthCount>,
    pub(crate) quotas: QuotaSnapshots,
}

pub(crate) struct SubsystemSnapshot {
    pub(crate) nqn: String,
    pub(crate) namespaces: usize,
    /// Sum of the sizes of its namespaces.
    pub(crate) size_bytes: u64,
    /// Commands that completed with Write Fault or Unrecovered Read Error.
    pub(crate) media_errors: u64,
    /// I/O counters; `None` before the first Connect command for the subsystem.
    pub(crate) io: Option<SubsystemIoStats>,
    /// Namespaces that had I/O commands or have a fault.
    pub(crate) used: Vec<NamespaceSnapshot>,
    /// NSIDs and descriptions of its namespaces that have one.
    pub(crate) descriptions: Vec<(u32, String)>,
}

pub(crate) struct NamespaceSnapshot {
    pub(crate) nsid: u32,
    pub(crate) name: String,
    pub(crate) writable: bool,
    pub(crate) size_bytes: u64,
    /// Failed commands of kinds that do not modify the medium.
    pub(crate) read_errors: u64,
    /// Failed commands of kinds that modify or flush the medium.
    pub(crate) write_errors: u64,
    pub(crate) write_back_failed: bool,
    pub(crate) shrank: bool,
    pub(crate) io: NamespaceIoStats,
}

impl TargetSnapshot {
    /// Writes the page. `detail` decides whether each namespace has histograms.
    pub(crate) fn to_text(&self, format: MetricsFormat, detail: MetricsDetail) -> String {
        let mut exposition = Exposition::new(format);
        of_target(&mut exposition, &self.stats);
        of_cores(&mut exposition, &self.turns);
        of_subsystems(&mut exposition, &self.subsystems);
        let mut namespaces = NamespaceFamilies { exposition, subsystems: &self.subsystems };
        namespaces.states();
        namespaces.counters();
        if detail == MetricsDetail::Namespace {
            namespaces.histograms();
        }
        let mut exposition = namespaces.exposition;
        of_peers(&mut exposition, &self.stats);
        of_authentications(&mut exposition, &self.authentications);
        self.quotas.write(&mut exposition);
        exposition.end()
    }
}

fn of_target(exposition: &mut Exposition, stats: &Stats) {
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    let help = "Version of the target.";
    let samples = exposition.family(MetricKind::Info, "feedrail_build", help);
    exposition.sample(&samples, &version, 1);
    let name = "feedrail_uptime_seconds";
    exposition.family(MetricKind::Gauge, name, "Time since the target started.");
    let uptime = format_args!("{}.{:03}", stats.uptime_ms / 1000, stats.uptime_ms % 1000);
    exposition.sample(name, &[], uptime);
    let mut gauge = |name, help, value| exposition.single(MetricKind::Gauge, name, help, value);
    let help = "Resident memory of the process, pool included.";
    gauge("feedrail_resident_memory_bytes", help, stats.resident_bytes);
    let help = "Connected controllers, discovery controllers included.";
    gauge("feedrail_associations", help, stats.associations);
    let help = "Connections (queues), admin queues included.";
    gauge("feedrail_connections", help, stats.connections);
    let mut counter = |name, help, value| exposition.single(MetricKind::Counter, name, help, value);
    let help = "RDMA/CM connection requests accepted.";
    counter("feedrail_connections_accepted", help, stats.connections_accepted);
    let help = "RDMA/CM connection requests rejected.";
    counter("feedrail_connections_rejected", help, stats.connections_rejected);
    counters(exposition, "feedrail_io", &stats.io, |_| true);
    counters(exposition, "feedrail_network", &stats.network, |counter| {
        // `feedrail_system_calls` has these.
        !["send_calls", "receive_calls"].contains(&counter.name)
    });
    let help = "System calls of the poll group threads, by kind.";
    let samples = exposition.family(MetricKind::Counter, "feedrail_system_calls", help);
    for (counter, value) in SystemCallStats::values(&stats.system_calls) {
        exposition.sample(&samples, &[("kind", counter.name)], value);
    }
    of_pool(exposition, &stats.pool);
    of_cache(exposition, &stats.cache);
}

fn of_pool(exposition: &mut Exposition, pool: &PoolStats) {
    for (counter, value) in pool.values() {
        let kind = if counter.name == "waits" { MetricKind::Counter } else { MetricKind::Gauge };
        let name = format!("feedrail_pool_{}", counter.name);
        exposition.single(kind, &name, counter.help, value);
    }
}

fn of_cache(exposition: &mut Exposition, cache: &CacheStats) {
    let CacheStats { limit_bytes, admitted_bytes, admitted_files, locked_bytes, bypassed } = *cache;
    let mut gauge = |name, help, value| exposition.single(MetricKind::Gauge, name, help, value);
    let help = "Most bytes of files that are read through the page cache.";
    gauge("feedrail_cache_limit_bytes", help, limit_bytes);
    let help = "Size of the open files that are read through the page cache.";
    gauge("feedrail_cache_admitted_bytes", help, admitted_bytes);
    let help = "Number of open files that are read through the page cache.";
    gauge("feedrail_cache_admitted_files", help, admitted_files);
    let help = "Bytes of these files that are locked in memory (mlock).";
    gauge("feedrail_cache_locked_bytes", help, locked_bytes);
    let help = "1 while these files are read past the page cache, since memory is short.";
    gauge("feedrail_cache_bypassed", help, u64::from(bypassed));
}

/// Writes the `wanted` counters of a set, as one family each.
fn counters<S: CounterSet>(
    exposition: &mut Exposition,
    prefix: &str,
    set: &S,
    wanted: impl Fn(&CounterInfo) -> bool,
) {
    for (counter, value) in set.values().filter(|(counter, _)| wanted(counter)) {
        let name = format!("{prefix}_{}", counter.name);
        exposition.single(MetricKind::Counter, &name, counter.help, value);
    }
}

fn of_cores(exposition: &mut Exposition, turns: &[LatencyStats]) {
    let name = "feedrail_turn_seconds";
    let help = "Duration of a poll group iteration that did work.";
    exposition.family(MetricKind::Histogram, name, help);
    for (core, turns) in turns.iter().enumerate() {
        exposition.histogram(name, &[("core", &core.to_string())], turns);
    }
}

fn of_subsystems(exposition: &mut Exposition, subsystems: &[SubsystemSnapshot]) {
    type OfSubsystem = fn(&SubsystemSnapshot) -> u64;
    let states: [(MetricKind, &str, &str, OfSubsystem); 3] = [
        (MetricKind::Gauge, "namespaces", "Namespaces of the subsystem.", |of| {
            of.namespaces as u64
        }),
        (MetricKind::Gauge, "size_bytes", "Sum of the sizes of its namespaces.", |of| {
            of.size_bytes
        }),
        (
            MetricKind::Counter,
            "media_errors",
            "Commands completed with Write Fault or Unrecovered Read Error.",
            |of| of.media_errors,
        ),
    ];
    for (kind, name, help, value) in states {
        let samples = exposition.family(kind, &format!("feedrail_subsystem_{name}"), help);
        for subsystem in subsystems {
            let labels = [("nqn", subsystem.nqn.as_str())];
            exposition.sample(&samples, &labels, value(subsystem));
        }
    }
    let counters = IoStats::COUNTERS.iter().enumerate();
    for (at, counter) in counters.filter(|(_, counter)| !OF_ENGINES.contains(&counter.name)) {
        let name = format!("feedrail_subsystem_{}", counter.name);
        let samples = exposition.family(MetricKind::Counter, &name, counter.help);
        for SubsystemSnapshot { nqn, io, .. } in subsystems {
            let value = io.as_ref().and_then(|io| io.commands.values().nth(at));
            // This sample exists from the start, so that the first refused Connect shows as an
            // increase.
            if value.is_some() || counter.name == "failed" {
                let value = value.map_or(0, |(_, value)| value);
                exposition.sample(&samples, &[("nqn", nqn)], value);
            }
        }
    }
    type OfIo = fn(&SubsystemIoStats) -> &LatencyStats;
    let latencies: [(&str, OfIo); 2] = [("Read", |io| &io.reads), ("Write", |io| &io.writes)];
    for (command, of) in latencies {
        let name = format!("feedrail_subsystem_{}_seconds", command.to_lowercase());
        exposition.family(MetricKind::Histogram, &name, &latency_help(command));
        for SubsystemSnapshot { nqn, io, .. } in subsystems {
            if let Some(io) = io {
                exposition.histogram(&name, &[("nqn", nqn)], of(io));
            }
        }
    }
}

fn latency_help(command: &str) -> String {
    format!("Latency of {command} commands, from arrival of the command capsule to its response.")
}

/// Writer of the families that have a sample for each namespace.
struct NamespaceFamilies<'a> {
    exposition: Exposition,
    subsystems: &'a [SubsystemSnapshot],
}

impl NamespaceFamilies<'_> {
    fn states(&mut self) {
        let name = "feedrail_namespace_size_bytes";
        self.exposition.family(MetricKind::Gauge, name, "Size of the namespace.");
        self.each(|exposition, labels, namespace| {
            exposition.sample(name, &labels, namespace.size_bytes);
        });
        let help = "Operator's description of the namespace.";
        let samples = self.exposition.family(MetricKind::Info, "feedrail_namespace", help);
        for SubsystemSnapshot { nqn, descriptions, .. } in self.subsystems {
            for (nsid, description) in descriptions {
                let nsid = nsid.to_string();
                let labels = [("nqn", nqn.as_str()), ("nsid", &nsid), ("description", description)];
                self.exposition.sample(&samples, &labels, 1);
            }
        }
        let name = "feedrail_namespace_storage_errors";
        let help = "Commands that failed because of an error of the file or device, by operation.";
        let samples = self.exposition.family(MetricKind::Counter, name, help);
        self.each(|exposition, [nqn, nsid, name], namespace| {
            let NamespaceSnapshot { writable, read_errors, write_errors, .. } = *namespace;
            let writes = (writable || write_errors > 0).then_some(("write", write_errors));
            for (operation, count) in [("read", read_errors)].into_iter().chain(writes) {
                let labels = [nqn, nsid, name, ("operation", operation)];
                exposition.sample(&samples, &labels, count);
            }
        });
        let name = "feedrail_namespace_write_back_failed";
        let help = "1 if acknowledged writes were lost (write-back error); further writes fail.";
        self.exposition.family(MetricKind::Gauge, name, help);
        self.each(|exposition, labels, namespace| {
            if namespace.writable {
                exposition.sample(name, &labels, u8::from(namespace.write_back_failed));
            }
        });
        let name = "feedrail_namespace_shrank";
        let help = "1 if its file was truncated; commands beyond the new end fail.";
        self.exposition.family(MetricKind::Gauge, name, help);
        self.each(|exposition, labels, namespace| {
            exposition.sample(name, &labels, u8::from(namespace.shrank));
        });
    }

    fn counters(&mut self) {
        for (at, counter) in NamespaceStats::COUNTERS.iter().enumerate() {
            let name = format!("feedrail_namespace_{}", counter.name);
            let samples = self.exposition.family(MetricKind::Counter, &name, counter.help);
            let of_writers = OF_WRITERS.contains(&counter.name);
            self.each(|exposition, labels, namespace| {
                let value = namespace.io.counters.values().nth(at);
                if let Some((_, value)) = value.filter(|_| namespace.writable || !of_writers) {
                    exposition.sample(&samples, &labels, value);
                }
            });
        }
    }

    fn histograms(&mut self) {
        let name = "feedrail_namespace_read_seconds";
        self.exposition.family(MetricKind::Histogram, name, &latency_help("Read"));
        self.each(|exposition, labels, namespace| {
            exposition.histogram(name, &labels, &namespace.io.reads);
        });
        let name = "feedrail_namespace_write_seconds";
        self.exposition.family(MetricKind::Histogram, name, &latency_help("Write"));
        self.each(|exposition, labels, namespace| {
            if namespace.writable {
                exposition.histogram(name, &labels, &namespace.io.writes);
            }
        });
    }

    fn each(&mut self, sample: impl Fn(&mut Exposition, [Label<'_>; 3], &NamespaceSnapshot)) {
        for SubsystemSnapshot { nqn, used, .. } in self.subsystems {
            for namespace in used {
                let nsid = namespace.nsid.to_string();
                let labels = [("nqn", nqn.as_str()), ("nsid", &nsid), ("name", &namespace.name)];
                sample(&mut self.exposition, labels, namespace);
            }
        }
    }
}

/// Writes the error counters of the peers with the most errors.
fn of_peers(exposition: &mut Exposition, stats: &Stats) {
    let name = "feedrail_peer_commands_failed";
    let help = "Commands of the peer completed with an error status, storage errors not included.";
    let samples = exposition.family(MetricKind::Counter, name, help);
    for peer in &stats.peer_errors {
        let labels = [("peer", peer.peer.as_str())];
        exposition.sample(&samples, &labels, peer.commands_failed);
    }
    let name = "feedrail_peer_connections_lost";
    let help = "Connections closed because the peer violated the protocol or stopped responding.";
    let samples = exposition.family(MetricKind::Counter, name, help);
    for peer in &stats.peer_errors {
        let labels = [("peer", peer.peer.as_str())];
        exposition.sample(&samples, &labels, peer.connections_lost);
    }
}

fn of_authentications(exposition: &mut Exposition, counts: &[AuthCount]) {
    let name = "feedrail_authentications";
    let help = "Authentications that ended, by host and result; hosts without a key are together.";
    let samples = exposition.family(MetricKind::Counter, name, help);
    for AuthCount { nqn, host, result, count } in counts {
        let labels = [("nqn", nqn.as_str()), ("host", host.as_str()), ("result", *result)];
        exposition.sample(&samples, &labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NQN: &str = "nqn.2026-01.io.feedrail:t";

    fn namespace(nsid: u32, writable: bool) -> NamespaceSnapshot {
        NamespaceSnapshot {
            nsid,
            name: "a".into(),
            writable,
            size_bytes: 4096,
            read_errors: 5,
            write_errors: 0,
            write_back_failed: writable,
            shrank: false,
            io: NamespaceIoStats::default(),
        }
    }

    fn subsystem(io: Option<SubsystemIoStats>) -> SubsystemSnapshot {
        SubsystemSnapshot {
            nqn: NQN.into(),
            namespaces: 3,
            size_bytes: 9000,
            media_errors: 0,
            io,
            used: vec![namespace(3, true), namespace(4, false)],
            descriptions: vec![(3, "tokens of \"GPT-2\"".into())],
        }
    }

    fn snapshot() -> TargetSnapshot {
        let commands = IoStats { read_bytes: 7, ..IoStats::default() };
        TargetSnapshot {
            stats: Stats { uptime_ms: 61_007, ..Stats::default() },
            turns: vec![LatencyStats::default(); 2],
            subsystems: vec![subsystem(Some(SubsystemIoStats {
                commands,
                ..SubsystemIoStats::default()
            }))],
            authentications: vec![AuthCount {
                nqn: NQN.into(),
                host: "other".into(),
                result: "failed",
                count: 2,
            }],
            quotas: QuotaSnapshots::default(),
        }
    }

    fn texts() -> Vec<String> {
        let formats = [MetricsFormat::Prometheus, MetricsFormat::OpenMetrics];
        let details = [MetricsDetail::Subsystem, MetricsDetail::Namespace];
        let texts = formats.map(|format| details.map(|detail| snapshot().to_text(format, detail)));
        texts.into_iter().flatten().collect()
    }

    #[test]
    fn values_are_in_base_units() {
        for text in texts() {
            for line in [
                "\nfeedrail_uptime_seconds 61.007\n",
                "{nqn=\"nqn.2026-01.io.feedrail:t\",nsid=\"3\",description=\"tokens of \\\"GPT-2\\\"\"} 1\n",
                "\nfeedrail_subsystem_read_bytes_total{nqn=\"nqn.2026-01.io.feedrail:t\"} 7\n",
                "{nqn=\"nqn.2026-01.io.feedrail:t\",nsid=\"3\",name=\"a\",operation=\"read\"} 5\n",
            ] {
                assert!(text.contains(line), "{line}\n{text}");
            }
        }
    }

    #[test]
    fn what_engines_and_writers_count_is_counted() {
        let names = |counters: &[CounterInfo]| -> Vec<_> {
            counters.iter().map(|counter| counter.name).collect()
        };
        let io = names(IoStats::COUNTERS);
        assert!(OF_ENGINES.iter().all(|name| io.contains(name)));
        let of_namespaces = names(NamespaceStats::COUNTERS);
        assert!(OF_WRITERS.iter().all(|name| of_namespaces.contains(name)));
        assert!(!texts()[0].contains("feedrail_subsystem_direct"));
    }

    #[test]
    fn a_namespace_that_is_only_read_has_no_samples_of_writes() {
        for text in texts() {
            let of = |nsid: u32| {
                let label = format!("nsid=\"{nsid}\"");
                let lines = text.lines().filter(move |line| line.contains(&label));
                lines.map(|line| line.split('{').next().expect("a name").to_owned())
            };
            let writes = |name: &String| name.contains("writ") || name.contains("flush");
            assert!(of(3).any(|name| writes(&name)) && of(4).count() > 0);
            assert_eq!(of(4).find(writes), None);
            assert!(!text.contains("nsid=\"4\",name=\"a\",operation=\"write\""), "{text}");
        }
    }

    #[test]
    fn histograms_are_of_subsystems_unless_more_is_asked_for() {
        let texts = texts();
        for (text, by_namespace) in texts.iter().zip([false, true, false, true]) {
            assert!(text.contains("\nfeedrail_subsystem_read_seconds_count{"));
            for command in ["read", "write"] {
                let count = format!("\nfeedrail_namespace_{command}_seconds_count{{");
                assert_eq!(text.contains(&count), by_namespace, "{command}: {text}");
            }
        }
    }

    /// 12,000 namespaces in the fewest subsystems that can have them.
    #[test]
    fn what_was_never_used_takes_little_room() {
        let idle =
            || SubsystemSnapshot { used: Vec::new(), descriptions: Vec::new(), ..subsystem(None) };
        let subsystems = (0..2000).map(|_| idle()).collect();
        let text = TargetSnapshot { subsystems, ..snapshot() }
            .to_text(MetricsFormat::Prometheus, MetricsDetail::Namespace);
        assert!(text.len() < 1_000_000, "{}", text.len());
        // A rate needs a sample from before the first failure.
        let failed = format!("\nfeedrail_subsystem_failed_total{{nqn=\"{NQN}\"}} 0\n");
        assert!(text.contains(&failed));
    }

    /// A family is declared once, before its samples, and no other sample has its name.
    #[test]
    fn families_are_declared_once() {
        for text in texts() {
            let mut declared = std::collections::BTreeSet::new();
            let mut current = "";
            for line in text.lines().filter(|line| *line != "# EOF") {
                let Some(rest) = line.strip_prefix("# ") else {
                    assert!(line.starts_with(current), "{line}");
                    continue;
                };
                let name = rest.split(' ').nth(1).expect("a name");
                if name != current {
                    assert!(declared.insert(name), "{name}");
                    current = name;
                }
            }
        }
    }
}

//! State of a target as JSON, for its status page.

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::controller::Controller;
use crate::inventory::Inventory;
use crate::inventory::port::{Port, PortState};
use crate::inventory::subsystem::Subsystem;
use crate::metrics::latency::LatencyStats;
use crate::metrics::page::{NamespaceSnapshot, SubsystemSnapshot, TargetSnapshot};

/// Most entries of each list, so that the page stays small with thousands of namespaces, hosts or
/// subsystems. `total` has the real number.
const MOST_LISTED: usize = 100;

/// Source of the status page's data.
pub(crate) struct TargetStatus<'a> {
    pub(crate) snapshot: &'a TargetSnapshot,
    pub(crate) inventory: &'a Inventory,
    pub(crate) controllers: &'a [Arc<Controller>],
}

impl TargetStatus<'_> {
    pub(crate) fn to_json(&self) -> Value {
        let (mut reads, mut writes) = (LatencyStats::default(), LatencyStats::default());
        for io in self.snapshot.subsystems.iter().filter_map(|subsystem| subsystem.io.as_ref()) {
            reads += io.reads;
            writes += io.writes;
        }
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "stats": self.snapshot.stats,
            "read_latency": latency(&reads),
            "write_latency": latency(&writes),
            "addresses": self.addresses(),
            "subsystems": self.subsystems(),
            "hosts": self.hosts(),
            "namespaces": self.namespaces(),
            "left_out": self.left_out(),
        })
    }

    fn addresses(&self) -> Value {
        let mut ports = self.inventory.ports();
        // Addresses that need attention come first, since the list is cut.
        ports.sort_by_cached_key(|port| matches!(port.state(), PortState::Listening { .. }));
        listed(ports.iter(), |port: &Arc<Port>| json!(port.status()))
    }

    fn subsystems(&self) -> Value {
        let subsystems = self.inventory.subsystems();
        let ports = self.inventory.ports();
        let describe = |subsystem: &Arc<Subsystem>| {
            let nqn = subsystem.nqn.as_str();
            let addresses = ports.iter().filter(|port| port.serves(subsystem));
            let snapshot = self.snapshot.subsystems.iter().find(|one| one.nqn == nqn);
            json!({
                "nqn": nqn,
                "addresses": addresses.map(|port| port.address().to_string()).collect::<Value>(),
                "allow_any_host": subsystem.hosts().any,
                "namespaces": snapshot.map_or(0, |of| of.namespaces),
                "size_bytes": snapshot.map_or(0, |of| of.size_bytes),
            })
        };
        listed(subsystems.iter(), describe)
    }

    /// Controllers of NVM subsystems, each with its host.
    fn hosts(&self) -> Value {
        let of_subsystem = |controller| {
            let subsystem = Arc::<Controller>::as_ref(controller).subsystem()?;
            Some((controller, subsystem.nqn.as_str()))
        };
        let describe = |(controller, nqn): (&Arc<Controller>, &str)| {
            let limits = controller.subsystem().map(|of| of.limits_of(&controller.host));
            let quota = controller.quota.as_ref().map(|quota| quota.stats()).unwrap_or_default();
            json!({
                "nqn": nqn,
                "hostnqn": controller.host.nqn.to_string(),
                "peer": controller.peer.ip().to_string(),
                "address": controller.port.address().to_string(),
                "io_queues": controller.io_queues(),
                "limits": limits.filter(|limits| !limits.is_none()).map(|limits| limits.to_string()),
                "throttled_commands": quota.throttled,
            })
        };
        listed(self.controllers.iter().filter_map(of_subsystem), describe)
    }

    /// Namespaces that had I/O commands or have a fault, in descending order of transferred bytes.
    fn namespaces(&self) -> Value {
        let mut used: Vec<(&str, &NamespaceSnapshot)> = Vec::new();
        for SubsystemSnapshot { nqn, used: namespaces, .. } in &self.snapshot.subsystems {
            used.extend(namespaces.iter().map(|namespace| (nqn.as_str(), namespace)));
        }
        let moved = |namespace: &NamespaceSnapshot| {
            let counters = &namespace.io.counters;
            counters.read_bytes + counters.written_bytes
        };
        used.sort_by_key(|(_, namespace)| Reverse(moved(namespace)));
        let describe = |(nqn, namespace): (&str, &NamespaceSnapshot)| {
            let counters = &namespace.io.counters;
            json!({
                "nqn": nqn,
                "nsid": namespace.nsid,
                "name": namespace.name,
                "size_bytes": namespace.size_bytes,
                "reads": counters.reads,
                "read_bytes": counters.read_bytes,
                "writes": counters.writes,
                "written_bytes": counters.written_bytes,
                "errors": namespace.read_errors + namespace.write_errors,
            })
        };
        listed(used.into_iter(), describe)
    }

    /// Files of exported directories that are not namespaces, with the reasons.
    fn left_out(&self) -> Value {
        let subsystems = self.inventory.subsystems();
        let files: Vec<_> = subsystems.iter().map(|subsystem| subsystem.left_out_files()).collect();
        let examples = files.iter().flat_map(|files| &files.examples).take(MOST_LISTED);
        let describe = |(path, reason): &(std::path::PathBuf, String)| json!({ "path": path.to_string_lossy(), "reason": reason });
        json!({
            "total": files.iter().map(|files| files.count).sum::<usize>(),
            "first": examples.map(describe).collect::<Value>(),
        })
    }
}

/// Describes the first [`MOST_LISTED`] entries of a list, and counts all of them.
fn listed<T>(mut entries: impl Iterator<Item = T>, describe: impl Fn(T) -> Value) -> Value {
    let first: Vec<_> = entries.by_ref().take(MOST_LISTED).map(describe).collect();
    let total = first.len() + entries.count();
    json!({ "total": total, "first": first })
}

/// Describes the buckets of a histogram that are not empty, as pairs of upper bound in microseconds
/// and number of commands. The bound is `null` for commands slower than all bounds.
fn latency(stats: &LatencyStats) -> Value {
    let mut buckets = Vec::new();
    let mut below = 0;
    for (bound_us, cumulative) in stats.cumulative() {
        if cumulative > below {
            buckets.push(json!([bound_us, cumulative - below]));
        }
        below = cumulative;
    }
    if stats.count() > below {
        buckets.push(json!([null, stats.count() - below]));
    }
    json!({ "count": stats.count(), "sum_us": stats.sum().as_micros() as u64, "buckets": buckets })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::latency::{Latency, LatencyCounters};

    #[test]
    fn lists_are_bounded() {
        let list = listed(0..12_000, |number| json!(number));
        assert_eq!(list["total"], 12_000);
        assert_eq!(list["first"].as_array().map(Vec::len), Some(MOST_LISTED));
    }

    #[test]
    fn histograms_have_their_buckets_in_order() {
        let counters = LatencyCounters::default();
        for nanos in [900, 900, 5_000, u64::MAX / 2] {
            counters.count(Latency::from_nanos(nanos));
        }
        let json = latency(&counters.snapshot());
        assert_eq!(json["count"], 4);
        assert_eq!(json["buckets"], json!([[1, 2], [6, 1], [null, 1]]));
    }
}

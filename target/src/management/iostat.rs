//! Result of the method `bdev_get_iostat`.

use nvme_proto::Nqn;
use serde_json::{Value, json};

use super::bdev::bdev_name;
use crate::inventory::namespace::Namespace;
use crate::metrics::latency::LatencyStats;
use crate::metrics::namespace_io::NamespaceStats;

/// I/O counters of a namespace since it was added: SPDK's fields, with latencies in nanoseconds,
/// summed over all commands. NQN, NSID, and commands that waited for its limits with the sum of
/// their waits, are an extension.
pub(super) fn describe_io(nqn: &Nqn, namespace: &Namespace) -> Value {
    let io = namespace.io.stats().unwrap_or_default();
    let quota = namespace.quota().stats();
    let NamespaceStats { reads, read_bytes, writes, written_bytes, deallocates, failed, .. } =
        io.counters;
    json!({
        "name": bdev_name(namespace),
        "nqn": nqn.as_str(),
        "nsid": namespace.nsid.0,
        "bytes_read": read_bytes,
        "num_read_ops": reads,
        "bytes_written": written_bytes,
        "num_write_ops": writes,
        "num_unmap_ops": deallocates,
        "read_latency_ticks": nanos(&io.reads),
        "write_latency_ticks": nanos(&io.writes),
        "io_error": failed,
        "throttled_ops": quota.throttled,
        "throttled_ticks": u64::try_from(quota.waited.as_nanos()).unwrap_or(u64::MAX),
    })
}

/// Sum of the latencies in nanoseconds, which 64 bits hold for 584 years.
fn nanos(latencies: &LatencyStats) -> u64 {
    u64::try_from(latencies.sum().as_nanos()).unwrap_or(u64::MAX)
}

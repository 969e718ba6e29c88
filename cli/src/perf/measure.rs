//! Figures of a job, and the sum over several jobs.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use feedrail_initiator::{Host, HostCounters};
use serde_json::{Value, json};

use super::workload::IoDirection;
use crate::command_trace::CommandAtHost;
use crate::latency::Latency;
use crate::size::human;

/// Bytes and latencies of all reads or of all writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct DirectionTotals {
    pub(crate) bytes: u64,
    latency: Latency,
}

/// Figures of one job, or of all of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measure {
    pub(crate) read: DirectionTotals,
    pub(crate) write: DirectionTotals,
    /// Bytes that the RDMA device transferred from or to the caller's memory directly.
    pub(crate) direct_bytes: u64,
    /// Bytes that were copied through a bounce buffer.
    pub(crate) bounced_bytes: u64,
    pub(crate) retries: u64,
    pub(crate) reconnects: u64,
    pub(crate) failovers: u64,
    /// Number of planned reads by the address of the target that returned the data.
    paths: BTreeMap<SocketAddr, u64>,
    /// Reads that were started more than once.
    read_again: u64,
    pub(crate) wire: WireTotals,
    pub(crate) trace: Vec<CommandAtHost>,
}

/// Counters of the host's provider; 0 where the device does not report them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WireTotals {
    /// System calls that sent, received, or slept.
    system_calls: u64,
    packets_sent: u64,
    packets_received: u64,
    packets_retransmitted: u64,
    np_ecn_marked_packets: u64,
    np_cnp_sent: u64,
    rp_cnp_handled: u64,
}

impl WireTotals {
    /// Totals of a host since it was created.
    pub(crate) fn of(host: &Host) -> Self {
        let mut wire = Self { system_calls: host.counters().sleeps, ..Self::default() };
        for stats in host.provider_stats() {
            wire.system_calls += stats.send_calls + stats.receive_calls;
            wire.packets_sent += stats.packets_sent;
            wire.packets_received += stats.packets_received;
            wire.packets_retransmitted += stats.packets_retransmitted;
            wire.np_ecn_marked_packets += stats.np_ecn_marked_packets;
            wire.np_cnp_sent += stats.np_cnp_sent;
            wire.rp_cnp_handled += stats.rp_cnp_handled;
        }
        wire
    }

    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            system_calls: self.system_calls - before.system_calls,
            packets_sent: self.packets_sent - before.packets_sent,
            packets_received: self.packets_received - before.packets_received,
            packets_retransmitted: self.packets_retransmitted - before.packets_retransmitted,
            np_ecn_marked_packets: self.np_ecn_marked_packets - before.np_ecn_marked_packets,
            np_cnp_sent: self.np_cnp_sent - before.np_cnp_sent,
            rp_cnp_handled: self.rp_cnp_handled - before.rp_cnp_handled,
        }
    }

    fn add(&mut self, other: &Self) {
        self.system_calls += other.system_calls;
        self.packets_sent += other.packets_sent;
        self.packets_received += other.packets_received;
        self.packets_retransmitted += other.packets_retransmitted;
        self.np_ecn_marked_packets += other.np_ecn_marked_packets;
        self.np_cnp_sent += other.np_cnp_sent;
        self.rp_cnp_handled += other.rp_cnp_handled;
    }

    fn to_json(self) -> Value {
        json!({
            "system_calls": self.system_calls,
            "packets_sent": self.packets_sent,
            "packets_received": self.packets_received,
            "packets_retransmitted": self.packets_retransmitted,
            "np_ecn_marked_packets": self.np_ecn_marked_packets,
            "np_cnp_sent": self.np_cnp_sent,
            "rp_cnp_handled": self.rp_cnp_handled,
        })
    }
}

impl DirectionTotals {
    pub(crate) fn count(&self) -> u64 {
        self.latency.count()
    }

    fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.latency.add(&other.latency);
    }

    pub(crate) fn to_json(&self, elapsed: Duration) -> Value {
        json!({
            "total_ios": self.count(),
            "io_bytes": self.bytes,
            "iops": per_second(self.count(), elapsed),
            "bytes_per_second": per_second(self.bytes, elapsed),
            "lat_ns": self.latency.to_json(),
        })
    }

    pub(crate) fn to_text(&self, name: &str, elapsed: Duration) -> String {
        format!(
            "  {name:<5}: {:.0} IOPS, {:.1} MB/s (1 MB = 10^6 bytes), {} I/Os\n  \
             latency (us): {}\n",
            per_second(self.count(), elapsed),
            per_second(self.bytes, elapsed) / 1e6,
            self.count(),
            self.latency.to_text(),
        )
    }
}

impl Measure {
    pub(crate) fn record(&mut self, direction: IoDirection, bytes: u64, latency: Duration) {
        let side = match direction {
            IoDirection::Read => &mut self.read,
            IoDirection::Write => &mut self.write,
        };
        side.bytes += bytes;
        side.latency.record(latency);
    }

    /// Counts a planned read by the path that it took.
    pub(crate) fn count_path(&mut self, path: SocketAddr, attempts: u8) {
        *self.paths.entry(path).or_default() += 1;
        self.read_again += u64::from(attempts > 1);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (path, reads) in &other.paths {
            *self.paths.entry(*path).or_default() += reads;
        }
        self.read_again += other.read_again;
        self.read.add(&other.read);
        self.write.add(&other.write);
        self.direct_bytes += other.direct_bytes;
        self.bounced_bytes += other.bounced_bytes;
        self.retries += other.retries;
        self.reconnects += other.reconnects;
        self.failovers += other.failovers;
        self.wire.add(&other.wire);
        self.trace.extend_from_slice(&other.trace);
    }

    pub(crate) fn count(&mut self, counters: &HostCounters) {
        self.direct_bytes = counters.direct_bytes;
        self.bounced_bytes = counters.bounced_bytes;
        self.retries = counters.retries;
        self.reconnects = counters.reconnects;
        self.failovers = counters.failovers;
    }

    pub(crate) fn to_json(&self, elapsed: Duration) -> Value {
        json!({
            "runtime_ms": u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            "read": self.read.to_json(elapsed),
            "write": self.write.to_json(elapsed),
            "direct_bytes": self.direct_bytes,
            "bounced_bytes": self.bounced_bytes,
            "retries": self.retries,
            "reconnects": self.reconnects,
            "failovers": self.failovers,
            "paths": self.paths.iter().map(|(path, &reads)| (path.to_string(), reads.into()))
                .collect::<serde_json::Map<_, _>>(),
            "read_again": self.read_again,
            "wire": self.wire.to_json(),
        })
    }

    pub(crate) fn to_text(&self, elapsed: Duration) -> String {
        let mut text = String::new();
        for (name, side) in [("read", &self.read), ("write", &self.write)] {
            if side.count() > 0 {
                text += &side.to_text(name, elapsed);
            }
        }
        if self.paths.len() > 1 {
            let reads = self.paths.iter().map(|(path, reads)| format!("{path}={reads}"));
            let reads = reads.collect::<Vec<_>>().join(" ");
            text += &format!("  reads by path: {reads}, begun again: {}\n", self.read_again);
        }
        text + &format!(
            "  direct={} bounced={} retries={} reconnects={} failovers={}\n",
            human(self.direct_bytes),
            human(self.bounced_bytes),
            self.retries,
            self.reconnects,
            self.failovers
        )
    }
}

pub(crate) fn per_second(count: u64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { count as f64 / elapsed.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_add_up() {
        let mut one = Measure::default();
        one.record(IoDirection::Read, 4096, Duration::from_micros(10));
        one.retries = 2;
        let path = |end| SocketAddr::from(([192, 0, 2, end], 4420));
        one.count_path(path(7), 1);
        let mut other = Measure::default();
        other.record(IoDirection::Read, 4096, Duration::from_micros(30));
        other.record(IoDirection::Write, 512, Duration::from_micros(5));
        other.count_path(path(7), 2);
        other.count_path(path(8), 1);
        one.add(&other);

        let json = one.to_json(Duration::from_secs(2));
        assert_eq!(json["read"]["total_ios"], 2);
        assert_eq!(json["read"]["bytes_per_second"], 4096.0);
        assert_eq!(json["write"]["io_bytes"], 512);
        assert_eq!(json["retries"], 2);
        assert_eq!(json["paths"], json!({ "192.0.2.7:4420": 2, "192.0.2.8:4420": 1 }));
        let text = one.to_text(Duration::from_secs(2));
        let expected = "reads by path: 192.0.2.7:4420=2 192.0.2.8:4420=1, begun again: 1\n";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn nothing_done_is_not_a_number_problem() {
        let json = Measure::default().to_json(Duration::ZERO);
        assert_eq!(json["read"]["iops"], 0.0);
        assert!(!Measure::default().to_text(Duration::ZERO).contains("IOPS"));
    }
}

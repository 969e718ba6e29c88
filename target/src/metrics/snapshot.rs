//! Values of all counters of the target, and their JSON line.

use rdma::{CounterSet as _, GroupStats};
use serde::{Serialize, Serializer};

pub use crate::backend::CacheStats;
pub use crate::metrics::io_counters::IoStats;
use crate::storage::EngineStats;

/// Values of all counters of a target at one moment.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stats {
    /// Time since the target started, in milliseconds.
    pub uptime_ms: u64,
    /// Connected controllers (associations), discovery controllers included.
    pub associations: u64,
    /// Connections (queues), admin queues included.
    pub connections: u64,
    /// Connections accepted since the start.
    pub connections_accepted: u64,
    /// Connection requests rejected since the start.
    pub connections_rejected: u64,
    /// I/O commands, by operation and result.
    pub io: IoStats,
    /// System calls of the poll groups, by kind.
    pub system_calls: SystemCallStats,
    /// Packets and datagrams; 0 for RDMA devices that do not report them.
    #[serde(serialize_with = "packets")]
    pub network: GroupStats,
    /// Size and use of the buffer pool, all cores together.
    pub pool: PoolStats,
    /// Files that are read through the page cache.
    pub cache: CacheStats,
    /// Peers that violated the protocol or whose commands failed, most errors first; at most 64.
    pub peer_errors: Vec<PeerErrors>,
    /// Namespaces whose files or devices failed, most errors first; at most 64.
    pub storage_errors: Vec<StorageErrors>,
    /// Resident memory of the process in bytes, pool included.
    pub resident_bytes: u64,
}

rdma::counters! {
    /// System calls of the poll groups, by kind.
    #[derive(Serialize)]
    pub struct SystemCallStats {
        /// `io_uring_enter` calls that submitted or reaped without waiting.
        uring_enter,
        /// `io_uring_enter` calls that waited for a completion or a timeout.
        uring_wait,
        /// `io_uring_register` calls, for buffers and files.
        uring_register,
        /// System calls on files without io_uring.
        file,
        /// System calls that sent packets.
        send,
        /// System calls that received packets.
        receive,
    }
}

rdma::counters! {
    /// The buffer pool, all cores together.
    #[derive(Serialize)]
    pub struct PoolStats {
        /// Size of the buffer pool.
        bytes,
        /// Bytes of the buffer pool in use by requests.
        used_bytes,
        /// Highest use of the buffer pool since the start, as the sum of the peaks of all cores.
        peak_bytes,
        /// Requests that wait for a buffer now.
        waiting,
        /// Requests that had to wait for a buffer.
        waits,
    }
}

/// Errors of the file or device of one namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StorageErrors {
    /// NQN of the subsystem.
    pub nqn: String,
    /// NSID in the subsystem.
    pub nsid: u32,
    /// Name of the namespace, as in the log.
    pub name: String,
    /// Reads and Compares that failed.
    pub read_errors: u64,
    /// Failed commands that modify or flush the medium.
    pub write_errors: u64,
    /// Whether writes that had been acknowledged were lost (failed write-back). All further writes
    /// are then refused until the target is restarted.
    pub write_back_failed: bool,
    /// Whether the file has shrunk. Commands beyond its new end fail until the target is restarted.
    pub shrank: bool,
}

/// Errors of one peer, by its address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PeerErrors {
    /// IP address of the peer.
    pub peer: String,
    /// Commands that ended with an error status for another reason than a failure of storage.
    pub commands_failed: u64,
    /// Connections that ended because the peer violated the protocol or stopped responding.
    pub connections_lost: u64,
}

impl Stats {
    /// Returns one line of JSON, without the newline: `{"event":"stats", ...}`.
    pub fn to_json_line(&self) -> String {
        #[derive(Serialize)]
        struct Line<'a> {
            event: &'static str,
            #[serde(flatten)]
            stats: &'a Stats,
        }
        serde_json::to_string(&Line { event: "stats", stats: self })
            .expect("counters and strings serialise")
    }
}

impl SystemCallStats {
    /// Collects the system calls of storage engines and network devices.
    pub(crate) fn of(engine: &EngineStats, network: &GroupStats) -> Self {
        Self {
            uring_enter: engine.enters,
            uring_wait: engine.waits,
            uring_register: engine.registers,
            file: engine.plain,
            send: network.send_calls,
            receive: network.receive_calls,
        }
    }
}

/// Serializes the packet counters, without the system calls, which `system_calls` has.
fn packets<S: Serializer>(network: &GroupStats, serializer: S) -> Result<S::Ok, S::Error> {
    const CALLS: [&str; 2] = ["send_calls", "receive_calls"];
    let packets = network.values().filter(|(counter, _)| !CALLS.contains(&counter.name));
    serializer.collect_map(packets.map(|(counter, value)| (counter.name, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_that_were_not_taken_are_reported() {
        let mut sum = GroupStats::default();
        for send_drops in [3, 4] {
            sum += GroupStats { send_drops, ..GroupStats::default() };
        }
        let stats = Stats { network: sum, ..Stats::default() };
        let line: serde_json::Value = serde_json::from_str(&stats.to_json_line()).expect("JSON");
        assert_eq!(line["network"]["send_drops"], 7);
    }

    /// A JSON line that names every counter once, each with a distinct number.
    #[test]
    fn the_json_line_stays_as_it_is() {
        let network = GroupStats {
            packets_sent: 201,
            send_drops: 202,
            packets_received: 203,
            payload_bytes_sent: 204,
            payload_bytes_received: 205,
            send_calls: 206,
            receive_calls: 207,
            packets_retransmitted: 208,
            packets_dropped: 209,
            icrc_failures: 210,
            rnr_naks_received: 211,
            rnr_naks_sent: 212,
            ack_timeouts: 213,
            sequence_naks_sent: 214,
            sequence_naks_received: 215,
            np_ecn_marked_packets: 217,
            np_cnp_sent: 218,
            rp_cnp_handled: 219,
            doorbells: 216,
        };
        let engine = EngineStats {
            enters: 301,
            waits: 302,
            registers: 303,
            plain: 304,
            reads: 305,
            writes: 306,
            syncs: 307,
            fallocates: 308,
            fixed: 309,
            direct: 310,
            buffered: 311,
            cached: 312,
            cache_misses: 317,
            cached_read_bytes: 313,
            mapped_read_bytes: 316,
            buffered_read_bytes: 314,
            direct_read_bytes: 315,
        };
        let stats = Stats {
            uptime_ms: 1,
            associations: 2,
            connections: 3,
            connections_accepted: 4,
            connections_rejected: 5,
            io: IoStats {
                reads: 101,
                read_bytes: 102,
                writes: 103,
                written_bytes: 104,
                flushes: 105,
                write_zeroes: 106,
                deallocates: 107,
                compares: 108,
                failed: 109,
                direct: 110,
                bounced: 111,
                cached: 112,
                cache_misses: 117,
                cached_read_bytes: 113,
                mapped_read_bytes: 116,
                buffered_read_bytes: 114,
                direct_read_bytes: 115,
            },
            system_calls: SystemCallStats::of(&engine, &network),
            network,
            pool: PoolStats { bytes: 6, used_bytes: 7, peak_bytes: 15, waiting: 16, waits: 8 },
            cache: CacheStats {
                limit_bytes: 17,
                admitted_bytes: 18,
                admitted_files: 19,
                locked_bytes: 20,
                bypassed: true,
            },
            peer_errors: vec![PeerErrors {
                peer: "10.0.0.1".into(),
                commands_failed: 9,
                connections_lost: 10,
            }],
            storage_errors: vec![StorageErrors {
                nqn: "nqn.2026-01.io.feedrail:t".into(),
                nsid: 11,
                name: "shard".into(),
                read_errors: 12,
                write_errors: 13,
                write_back_failed: true,
                shrank: false,
            }],
            resident_bytes: 14,
        };
        let line = concat!(
            r#"{"event":"stats","uptime_ms":1,"associations":2,"connections":3,"#,
            r#""connections_accepted":4,"connections_rejected":5,"#,
            r#""io":{"reads":101,"read_bytes":102,"writes":103,"written_bytes":104,"#,
            r#""flushes":105,"write_zeroes":106,"deallocates":107,"compares":108,"#,
            r#""failed":109,"direct":110,"bounced":111,"cached":112,"cache_misses":117,"#,
            r#""cached_read_bytes":113,"mapped_read_bytes":116,"buffered_read_bytes":114,"direct_read_bytes":115},"#,
            r#""system_calls":{"uring_enter":301,"uring_wait":302,"#,
            r#""uring_register":303,"file":304,"send":206,"receive":207},"#,
            r#""network":{"packets_sent":201,"send_drops":202,"packets_received":203,"#,
            r#""payload_bytes_sent":204,"payload_bytes_received":205,"#,
            r#""packets_retransmitted":208,"packets_dropped":209,"icrc_failures":210,"#,
            r#""ack_timeouts":213,"rnr_naks_sent":212,"rnr_naks_received":211,"#,
            r#""sequence_naks_sent":214,"sequence_naks_received":215,"#,
            r#""np_ecn_marked_packets":217,"np_cnp_sent":218,"rp_cnp_handled":219,"#,
            r#""doorbells":216},"#,
            r#""pool":{"bytes":6,"used_bytes":7,"peak_bytes":15,"waiting":16,"waits":8},"#,
            r#""cache":{"limit_bytes":17,"admitted_bytes":18,"admitted_files":19,"#,
            r#""locked_bytes":20,"bypassed":true},"#,
            r#""peer_errors":[{"peer":"10.0.0.1","commands_failed":9,"#,
            r#""connections_lost":10}],"#,
            r#""storage_errors":[{"nqn":"nqn.2026-01.io.feedrail:t","nsid":11,"#,
            r#""name":"shard","read_errors":12,"write_errors":13,"#,
            r#""write_back_failed":true,"shrank":false}],"#,
            r#""resident_bytes":14}"#,
        );
        assert_eq!(stats.to_json_line(), line);
    }
}

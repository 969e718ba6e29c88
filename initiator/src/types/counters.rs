//! Counters of a host, and of the RDMA providers of its devices.

use rdma::GroupStats;

/// Counters of a host since it was built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCounters {
    /// Commands sent to controllers, on all queues.
    pub commands: u64,
    /// Ranges that ended without an error.
    pub ranges: u64,
    /// Ranges that ended with an error.
    pub ranges_failed: u64,
    /// Parts of ranges, one command each or of a list of ranges, that were transferred directly
    /// between the target and the caller's memory.
    pub direct_steps: u64,
    /// Bytes transferred in the parts of `direct_steps`.
    pub direct_bytes: u64,
    /// Parts of ranges that were copied through a bounce buffer, since they begin or end within a
    /// block.
    pub bounced_steps: u64,
    /// Bytes transferred in the parts of `bounced_steps`.
    pub bounced_bytes: u64,
    /// Ranges that were read by commands that list several ranges.
    pub listed_ranges: u64,
    /// Write commands whose data was sent in the command capsule.
    pub in_capsule_writes: u64,
    /// Times that a range was issued again, after a reconnect or a status that permits a retry.
    pub retries: u64,
    /// Times that a range was moved to another path of its namespace, or to another replica of its
    /// shard.
    pub failovers: u64,
    /// Connections established again after they were lost.
    pub reconnects: u64,
    /// Established connections that ended although this host did not close them.
    pub connections_lost: u64,
    /// Responses that violated the protocol; each ended its connection.
    pub protocol_violations: u64,
    /// Ranges that failed because they had no result before their deadline.
    pub timeouts: u64,
    /// Abort commands sent, one for each command of a range past its deadline.
    pub aborts: u64,
    /// Keep Alive commands sent.
    pub keep_alives: u64,
    /// Times that a thread slept while it waited for completions, timers or a wake-up.
    pub sleeps: u64,
    /// Sleeps that ended because a timer was due.
    pub timer_wakes: u64,
}

impl HostCounters {
    /// Counts ranges that a command with a list has read.
    pub(crate) fn count_listed(&mut self, ranges: u32, bytes: u64) {
        self.listed_ranges += u64::from(ranges);
        self.direct_steps += u64::from(ranges);
        self.direct_bytes += bytes;
    }

    /// Returns the sum of both, counter by counter.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            ranges: self.ranges + other.ranges,
            ranges_failed: self.ranges_failed + other.ranges_failed,
            direct_steps: self.direct_steps + other.direct_steps,
            direct_bytes: self.direct_bytes + other.direct_bytes,
            bounced_steps: self.bounced_steps + other.bounced_steps,
            bounced_bytes: self.bounced_bytes + other.bounced_bytes,
            listed_ranges: self.listed_ranges + other.listed_ranges,
            in_capsule_writes: self.in_capsule_writes + other.in_capsule_writes,
            retries: self.retries + other.retries,
            failovers: self.failovers + other.failovers,
            reconnects: self.reconnects + other.reconnects,
            connections_lost: self.connections_lost + other.connections_lost,
            protocol_violations: self.protocol_violations + other.protocol_violations,
            timeouts: self.timeouts + other.timeouts,
            aborts: self.aborts + other.aborts,
            keep_alives: self.keep_alives + other.keep_alives,
            sleeps: self.sleeps + other.sleeps,
            timer_wakes: self.timer_wakes + other.timer_wakes,
        }
    }
}

/// Counters of the RDMA provider of one device. With `Verbs` only `doorbells` is counted, since the
/// device itself sends and receives the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderStats {
    /// Packets sent, retransmissions included.
    pub packets_sent: u64,
    /// Packets that the system call for sending did not accept; they are retransmitted like lost
    /// ones.
    pub send_drops: u64,
    /// Packets received and accepted.
    pub packets_received: u64,
    /// Bytes of payload sent, retransmissions included.
    pub payload_bytes_sent: u64,
    /// Bytes of payload received and accepted.
    pub payload_bytes_received: u64,
    /// System calls that sent packets.
    pub send_calls: u64,
    /// System calls that received packets.
    pub receive_calls: u64,
    /// Packets retransmitted after a time-out or a NAK.
    pub packets_retransmitted: u64,
    /// Packets dropped as duplicates, out of order, malformed or for an unknown queue pair.
    pub packets_dropped: u64,
    /// Packets dropped because the invariant CRC was wrong.
    pub icrc_failures: u64,
    /// RNR (receiver not ready) NAKs received.
    pub rnr_naks_received: u64,
    /// RNR (receiver not ready) NAKs sent.
    pub rnr_naks_sent: u64,
    /// Times that no acknowledgement arrived within the acknowledgement time-out.
    pub ack_timeouts: u64,
    /// NAKs sent for a PSN sequence error, which is a gap in the packets received.
    pub sequence_naks_sent: u64,
    /// NAKs received for a PSN sequence error.
    pub sequence_naks_received: u64,
    /// Packets received with the ECN mark Congestion Experienced.
    pub np_ecn_marked_packets: u64,
    /// Congestion notification packets (CNP) sent.
    pub np_cnp_sent: u64,
    /// Congestion notification packets (CNP) received; each lowers the rate of sending.
    pub rp_cnp_handled: u64,
    /// Work requests posted to send queues.
    pub doorbells: u64,
}

impl ProviderStats {
    pub(crate) fn of(stats: GroupStats) -> Self {
        // Destructured without `..`, so that the compiler reports a counter that is missing here.
        let GroupStats {
            packets_sent,
            send_drops,
            packets_received,
            payload_bytes_sent,
            payload_bytes_received,
            send_calls,
            receive_calls,
            packets_retransmitted,
            packets_dropped,
            icrc_failures,
            rnr_naks_received,
            rnr_naks_sent,
            ack_timeouts,
            sequence_naks_sent,
            sequence_naks_received,
            np_ecn_marked_packets,
            np_cnp_sent,
            rp_cnp_handled,
            doorbells,
        } = stats;
        Self {
            packets_sent,
            send_drops,
            packets_received,
            payload_bytes_sent,
            payload_bytes_received,
            send_calls,
            receive_calls,
            packets_retransmitted,
            packets_dropped,
            icrc_failures,
            rnr_naks_received,
            rnr_naks_sent,
            ack_timeouts,
            sequence_naks_sent,
            sequence_naks_received,
            np_ecn_marked_packets,
            np_cnp_sent,
            rp_cnp_handled,
            doorbells,
        }
    }
}

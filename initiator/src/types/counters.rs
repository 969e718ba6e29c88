//! Counters of a host and of its RDMA providers.

use rdma::GroupStats;

/// Counters of a host since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostCounters {
    /// Commands sent to controllers, on all queues.
    pub commands: u64,
    /// Ranges that ended well.
    pub ranges: u64,
    /// Ranges that ended with an error.
    pub ranges_failed: u64,
    /// Ranges, or parts of them, that went between the target and the caller's memory without a
    /// copy.
    pub direct_steps: u64,
    /// Bytes of ranges that were transferred without a copy.
    pub direct_bytes: u64,
    /// Ranges, or parts of them, that were copied through a bounce buffer.
    pub bounced_steps: u64,
    /// Bytes of ranges that were copied.
    pub bounced_bytes: u64,
    /// Writes whose data went with the command.
    pub in_capsule_writes: u64,
    /// Ranges that were issued again, after a reconnect or a status that allowed it.
    pub retries: u64,
    /// Ranges that were moved to another path, or to another replica of their shard, than they were
    /// begun with.
    pub failovers: u64,
    /// Connections made again after a loss.
    pub reconnects: u64,
    /// Connections that ended without being asked to.
    pub connections_lost: u64,
    /// Times that a target broke the protocol.
    pub protocol_violations: u64,
    /// Ranges that had no result before their deadline.
    pub timeouts: u64,
    /// Abort commands sent, one for each command of a range past its deadline.
    pub aborts: u64,
    /// Keep Alive commands sent.
    pub keep_alives: u64,
    /// Times that a thread slept until there was something to do.
    pub sleeps: u64,
    /// Sleeps that ended because the time for something had come.
    pub timer_wakes: u64,
}

impl HostCounters {
    /// The sum of both, counter by counter.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            commands: self.commands + other.commands,
            ranges: self.ranges + other.ranges,
            ranges_failed: self.ranges_failed + other.ranges_failed,
            direct_steps: self.direct_steps + other.direct_steps,
            direct_bytes: self.direct_bytes + other.direct_bytes,
            bounced_steps: self.bounced_steps + other.bounced_steps,
            bounced_bytes: self.bounced_bytes + other.bounced_bytes,
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

/// Counters of the RDMA provider of one device. Verbs counts doorbells only: its devices
/// send and receive the packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProviderStats {
    /// Packets sent, retransmissions included.
    pub packets_sent: u64,
    /// Packets that the system did not take; they are sent again like any that are lost.
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
    /// Packets sent again after a time-out or a NAK.
    pub packets_retransmitted: u64,
    /// Packets dropped as duplicates, out of order, malformed or for an unknown queue pair.
    pub packets_dropped: u64,
    /// Packets dropped because the invariant CRC was wrong.
    pub icrc_failures: u64,
    /// Times that the peer said receiver-not-ready.
    pub rnr_naks_received: u64,
    /// Times that this host said receiver-not-ready.
    pub rnr_naks_sent: u64,
    /// Times that an acknowledgement did not come in time.
    pub ack_timeouts: u64,
    /// NAKs sent for a gap in the sequence.
    pub sequence_naks_sent: u64,
    /// NAKs received for a gap in the sequence.
    pub sequence_naks_received: u64,
    /// Packets received that a congested queue had marked (ECN).
    pub np_ecn_marked_packets: u64,
    /// Congestion notification packets sent.
    pub np_cnp_sent: u64,
    /// Congestion notification packets received, after which less is sent.
    pub rp_cnp_handled: u64,
    /// Send requests that were handed over.
    pub doorbells: u64,
}

impl ProviderStats {
    pub(crate) fn of(stats: GroupStats) -> Self {
        // Without `..`: a counter that is new is shown here too.
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

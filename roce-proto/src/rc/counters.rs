//! Counters of a queue pair.

/// Counters of a queue pair; they never decrease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCounters {
    /// Packets sent, retransmissions and acknowledgements included.
    pub packets_sent: u64,
    /// Packets received and accepted.
    pub packets_received: u64,
    /// Payload bytes sent, retransmissions included.
    pub payload_bytes_sent: u64,
    /// Payload bytes received and accepted.
    pub payload_bytes_received: u64,
    /// Packets sent again; `packets_sent` counts them too.
    pub packets_retransmitted: u64,
    /// Packets dropped: duplicate, out of order or invalid.
    pub packets_dropped: u64,
    /// Timeouts after which packets were retransmitted.
    pub ack_timeouts: u64,
    /// Retransmission timeouts after which the peer turned out to be slow, with nothing lost.
    pub spurious_timeouts: u64,
    /// NAKs and selective acknowledgements sent for a gap in the sequence.
    pub sequence_naks_sent: u64,
    /// NAKs and selective acknowledgements received for a gap in the sequence.
    pub sequence_naks_received: u64,
    /// RNR NAKs sent to the peer.
    pub rnr_naks_sent: u64,
    /// RNR NAKs received from the peer.
    pub rnr_naks_received: u64,
    /// Packets received with ECN Congestion Experienced.
    pub ecn_marked_packets: u64,
    /// Congestion notification packets (CNPs) sent.
    pub notifications_sent: u64,
    /// Congestion notification packets (CNPs) received and handled.
    pub notifications_handled: u64,
}

impl core::ops::AddAssign for QueuePairCounters {
    fn add_assign(&mut self, other: Self) {
        // Without `..`, so that a new counter cannot be forgotten here.
        let Self {
            packets_sent,
            packets_received,
            payload_bytes_sent,
            payload_bytes_received,
            packets_retransmitted,
            packets_dropped,
            ack_timeouts,
            spurious_timeouts,
            sequence_naks_sent,
            sequence_naks_received,
            rnr_naks_sent,
            rnr_naks_received,
            ecn_marked_packets,
            notifications_sent,
            notifications_handled,
        } = other;
        self.packets_sent += packets_sent;
        self.packets_received += packets_received;
        self.payload_bytes_sent += payload_bytes_sent;
        self.payload_bytes_received += payload_bytes_received;
        self.packets_retransmitted += packets_retransmitted;
        self.packets_dropped += packets_dropped;
        self.ack_timeouts += ack_timeouts;
        self.spurious_timeouts += spurious_timeouts;
        self.sequence_naks_sent += sequence_naks_sent;
        self.sequence_naks_received += sequence_naks_received;
        self.rnr_naks_sent += rnr_naks_sent;
        self.rnr_naks_received += rnr_naks_received;
        self.ecn_marked_packets += ecn_marked_packets;
        self.notifications_sent += notifications_sent;
        self.notifications_handled += notifications_handled;
    }
}

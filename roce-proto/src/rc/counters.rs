//! Counters of one queue pair.

/// Counts of a queue pair's packets and messages. All of them only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuePairCounters {
    /// Packets handed out, retransmissions and acknowledgements included.
    pub packets_sent: u64,
    /// Packets that were accepted.
    pub packets_received: u64,
    /// Bytes of payload handed out, retransmissions included.
    pub payload_bytes_sent: u64,
    /// Bytes of payload that were accepted.
    pub payload_bytes_received: u64,
    /// Packets handed out again.
    pub packets_retransmitted: u64,
    /// Packets that were duplicates, out of order, or made no sense.
    pub packets_dropped: u64,
    /// Times that nothing arrived for as long as a retransmission takes.
    pub ack_timeouts: u64,
    /// Time-outs after which the peer turned out to be merely slow.
    pub spurious_timeouts: u64,
    /// Negative and selective acknowledgements sent for a gap in the sequence.
    pub sequence_naks_sent: u64,
    /// Negative and selective acknowledgements received for a gap in the sequence.
    pub sequence_naks_received: u64,
    /// Times that we said receiver-not-ready.
    pub rnr_naks_sent: u64,
    /// Times that the peer said receiver-not-ready.
    pub rnr_naks_received: u64,
    /// Packets that came with Congestion Experienced.
    pub ecn_marked_packets: u64,
    /// Congestion notifications that were sent.
    pub notifications_sent: u64,
    /// Congestion notifications that came, and were heeded.
    pub notifications_handled: u64,
}

impl core::ops::AddAssign for QueuePairCounters {
    fn add_assign(&mut self, other: Self) {
        // Without `..`: a counter that is new is added here too.
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

//! Counters of one queue pair.

/// What a queue pair did and saw. All of them only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
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
    /// Times that nothing was heard for as long as a retransmission takes.
    pub ack_timeouts: u64,
    /// Of these, times that the peer turned out to be merely slow.
    pub spurious_timeouts: u64,
    /// Negative acknowledgements sent for a gap in the sequence.
    pub sequence_naks_sent: u64,
    /// Negative acknowledgements received for a gap in the sequence.
    pub sequence_naks_received: u64,
    /// Times that we said receiver-not-ready.
    pub rnr_naks_sent: u64,
    /// Times that the peer said receiver-not-ready.
    pub rnr_naks_received: u64,
}

impl core::ops::AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        self.packets_sent += other.packets_sent;
        self.packets_received += other.packets_received;
        self.payload_bytes_sent += other.payload_bytes_sent;
        self.payload_bytes_received += other.payload_bytes_received;
        self.packets_retransmitted += other.packets_retransmitted;
        self.packets_dropped += other.packets_dropped;
        self.ack_timeouts += other.ack_timeouts;
        self.spurious_timeouts += other.spurious_timeouts;
        self.sequence_naks_sent += other.sequence_naks_sent;
        self.sequence_naks_received += other.sequence_naks_received;
        self.rnr_naks_sent += other.rnr_naks_sent;
        self.rnr_naks_received += other.rnr_naks_received;
    }
}

//! Groups: a completion queue and the queue pairs that complete to it.

/// Which completions wake a sleeping group. A poll after any wake-up returns all completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeFor {
    /// Every completion: of receives, of signaled sends and of failed requests.
    Everything,
    /// Completions of receives, including the flushed receives of a queue pair that fails.
    /// Completions of send requests may wait until the next wake-up. A provider that cannot
    /// distinguish the two wakes for send requests as well.
    Arrivals,
}

/// Identifies a queue pair of a group. Use of the key of a released queue pair is detected and
/// panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpKey(pub u64);

/// Expected size of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupConfig {
    /// Initial size of the completion queue, in entries; a device enlarges it as queue pairs need,
    /// up to its limit.
    pub completions: u32,
    /// Queue pairs that the group is expected to hold; space for them is allocated up front where
    /// possible.
    pub queue_pairs: u32,
    /// Index of the completion vector to use, modulo the number that the device has.
    pub completion_vector: u32,
}

/// Queue sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Maximum number of requests in the send queue.
    pub send_wr: u32,
    /// Maximum number of requests in the receive queue.
    pub recv_wr: u32,
    /// Maximum number of scatter-gather elements of a send request.
    pub send_sge: u32,
    /// Maximum number of scatter-gather elements of a receive request.
    pub recv_sge: u32,
    /// Maximum bytes of payload of a request with [`crate::SendFlags::INLINE`].
    pub inline_bytes: u32,
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// More scatter-gather elements than [`QpConfig`] grants.
    #[error("more scatter-gather elements than the queue pair was granted")]
    TooManySges,
    /// The queue is full until requests complete.
    #[error("the queue is full")]
    QueueFull,
    /// The device does not support the operation.
    #[error("the device does not support this operation")]
    Unsupported,
    /// More inline data than [`QpConfig`] grants.
    #[error("more inline data than the queue pair was granted")]
    InlineTooLong,
}

crate::counters! {
    /// Counters of one group. A provider whose device handles the packets leaves the packet
    /// counters at zero.
    pub struct GroupStats {
        /// Packets sent, retransmissions included.
        packets_sent,
        /// Packets that the kernel refused to send; they are retransmitted like lost ones.
        send_drops,
        /// Packets received and accepted; dropped ones are not counted.
        packets_received,
        /// Payload bytes sent, retransmissions included.
        payload_bytes_sent,
        /// Payload bytes received and accepted.
        payload_bytes_received,
        /// System calls that sent packets.
        send_calls,
        /// System calls that received packets.
        receive_calls,
        /// Packets retransmitted; packets sent include them.
        packets_retransmitted,
        /// Received packets dropped: duplicate, out of sequence, malformed, or for an unknown queue
        /// pair.
        packets_dropped,
        /// Received packets dropped because of a wrong ICRC (invariant CRC).
        icrc_failures,
        /// Local ACK timeouts: expiries of a queue pair's transport timer without an ACK from the
        /// peer.
        ack_timeouts,
        /// RNR NAKs sent: a message arrived and no receive was posted.
        rnr_naks_sent,
        /// RNR NAKs received: the peer had no receive posted.
        rnr_naks_received,
        /// PSN sequence error NAKs sent: a packet from the peer was missing.
        sequence_naks_sent,
        /// PSN sequence error NAKs received: the peer missed a packet.
        sequence_naks_received,
        /// Packets received with ECN Congestion Experienced (CE).
        np_ecn_marked_packets,
        /// CNPs (congestion notification packets) sent.
        np_cnp_sent,
        /// CNPs (congestion notification packets) received; each reduces the sending rate.
        rp_cnp_handled,
        /// Send work requests posted to the provider.
        doorbells,
    }
}

//! Groups: a completion queue and the queue pairs that complete to it.

/// The completions that a group is armed for. A poll after any wake-up reaps all completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeFor {
    /// Every completion: of receives, of signaled sends and of failed requests.
    Everything,
    /// Arrivals: receives, and with them every queue pair that fails while it holds one. Send
    /// requests that are done may wait until something else happens. A provider that cannot tell
    /// them apart wakes for them as well.
    Arrivals,
}

/// Names a queue pair of a group. Stale keys are noticed: using one is a bug of the caller and
/// panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QpKey(pub u64);

/// The load that a group is made for.
#[derive(Clone, Copy, Debug)]
pub struct GroupConfig {
    /// Completions that can wait to be polled; a device makes room for more as queue pairs need it,
    /// as far as it can.
    pub completions: u32,
    /// Queue pairs that the group is expected to hold; space for them is allocated up front where
    /// possible.
    pub queue_pairs: u32,
    /// Which of the device's completion vectors to use, modulo their number.
    pub completion_vector: u32,
}

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Requests in the send queue.
    pub send_wr: u32,
    /// Requests in the receive queue.
    pub recv_wr: u32,
    /// Scatter-gather elements per send request.
    pub send_sge: u32,
    /// Scatter-gather elements per receive.
    pub recv_sge: u32,
    /// Bytes that a request with [`crate::SendFlags::INLINE`] may carry.
    pub inline_bytes: u32,
}

/// Why a request was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// More scatter-gather elements than were granted.
    #[error("more scatter-gather elements than the queue pair was granted")]
    TooManySges,
    /// No room: wait for completions.
    #[error("the queue is full")]
    QueueFull,
    /// The device does not do this.
    #[error("the device does not support this operation")]
    Unsupported,
    /// Inline data beyond what was granted.
    #[error("more inline data than the queue pair was granted")]
    InlineTooLong,
}

crate::counters! {
    /// Counters of one group. A provider that does not see packets leaves those at zero.
    pub struct GroupStats {
        /// Packets sent, retransmissions included.
        packets_sent,
        /// Packets that the system did not take; they are sent again like any that are lost.
        send_drops,
        /// Packets received and accepted.
        packets_received,
        /// Bytes of payload sent, retransmissions included.
        payload_bytes_sent,
        /// Bytes of payload received and accepted.
        payload_bytes_received,
        /// System calls that sent.
        send_calls,
        /// System calls that received.
        receive_calls,
        /// Packets that had been sent before; [`GroupStats::packets_sent`] counts them too.
        packets_retransmitted,
        /// Packets dropped as duplicates, out of order, malformed or for an unknown queue pair.
        packets_dropped,
        /// Packets dropped because the invariant CRC was wrong.
        icrc_failures,
        /// Times that the acknowledge timer of a queue pair expired before the peer's
        /// acknowledgement came.
        ack_timeouts,
        /// Times that we said receiver-not-ready.
        rnr_naks_sent,
        /// Times that the peer said receiver-not-ready.
        rnr_naks_received,
        /// NAKs sent for a gap in the sequence.
        sequence_naks_sent,
        /// NAKs received for a gap in the sequence.
        sequence_naks_received,
        /// Packets received that a congested queue had marked (ECN).
        np_ecn_marked_packets,
        /// Congestion notification packets sent.
        np_cnp_sent,
        /// Congestion notification packets received, after which less is sent.
        rp_cnp_handled,
        /// Send requests that were handed over.
        doorbells,
    }
}

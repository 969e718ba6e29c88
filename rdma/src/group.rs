//! Groups: a completion queue and the queue pairs that complete to it.
#![expect(unsafe_code, reason = "declares methods that take memory by address")]

use std::os::fd::BorrowedFd;

use crate::{Provider, RecvWr, SendWr, Time, Wc};

/// A completion queue and the queue pairs behind it; owned by one thread at a time.
///
/// Pushing queues a request in space that was preallocated; [`Group::flush`] hands everything
/// pushed to the device with at most one doorbell per queue pair. After an error each request that
/// was pushed and has not completed is reported by [`Group::poll`] with
/// [`crate::WcStatus::FLUSHED`], those the device never saw included: there is one completion path.
///
/// No method allocates, blocks or takes a lock that another thread holds for long.
pub trait Group<P: Provider>: Send {
    /// Names this group when a connection manager makes a queue pair for it; may go to other
    /// threads.
    fn handle(&self) -> P::GroupHandle;

    /// Takes over a queue pair that was made for this group.
    fn adopt(&mut self, qp: P::NewQp) -> QpKey;

    /// The queue pair's number, as in [`Wc::qpn`].
    fn qpn(&self, qp: QpKey) -> u32;

    /// The sizes that the queue pair was granted, which may differ from those asked for.
    fn granted(&self, qp: QpKey) -> QpConfig;

    /// Queues a send request. On a queue pair that is not connected yet it waits for the
    /// connection.
    ///
    /// # Errors
    /// The request was not queued.
    ///
    /// # Safety
    /// The memory behind `sges` must stay valid, and for RDMA READs unaliased, until the request
    /// completes or [`Group::release`] returns, or until the region behind its key is dropped.
    unsafe fn push_send(&mut self, qp: QpKey, wr: &SendWr<'_>) -> Result<(), PushError>;

    /// Queues a receive; allowed before the connection is accepted.
    ///
    /// # Errors
    /// The request was not queued.
    ///
    /// # Safety
    /// As for [`Group::push_send`]; the memory must be unaliased.
    unsafe fn push_recv(&mut self, qp: QpKey, wr: &RecvWr<'_>) -> Result<(), PushError>;

    /// Hands all that was pushed to the device.
    fn flush(&mut self, now: Time);

    /// Drives progress and reaps completions into `out`; returns how many. Zero means nothing is
    /// left to do before [`Group::deadline`] or a wake-up, provided that `out` was not empty.
    fn poll(&mut self, now: Time, out: &mut [Wc]) -> usize;

    /// When `poll` must run again at the latest, if nothing wakes [`Group::fd`] earlier.
    fn deadline(&self) -> Option<Time>;

    /// Asks for a wake-up on [`Group::fd`]. Returns whether something may have come before that
    /// causes none: then poll once more before sleeping.
    fn arm(&mut self, what: WakeFor) -> bool;

    /// Readable when there is something to poll for; `None` where a simulator drives.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Consumes the wake-up, once [`Group::fd`] was readable.
    fn acknowledge_wake(&mut self);

    /// Moves a queue pair to ERROR: its requests complete with a flush status, and from then on
    /// nothing that the peer sends for it is placed.
    fn fail(&mut self, qp: QpKey);

    /// Frees a queue pair. Once it returns, none of its requests' memory is touched and no
    /// completion of it is reported, those not yet polled included.
    fn release(&mut self, qp: QpKey);

    /// Counters since the group was made.
    fn stats(&self) -> GroupStats;
}

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

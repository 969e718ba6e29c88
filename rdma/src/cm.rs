//! Connection management: the RDMA-CM exchange that makes and ends reliable connections.

use core::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::{LocalPeer, soft};

/// Identifies a connection or a listener of one connection manager; values are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Reject reason 28 of the InfiniBand CM, "consumer defined": the private data holds the cause.
pub const REJECT_CONSUMER_DEFINED: u16 = 28;

/// Options of a connection, or of a listener for its incoming connections. An option that is `None`
/// for a listener takes the value of the peer's request.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnOptions {
    /// Type of service of the connection's packets. A software provider uses its DSCP, and sets
    /// ECT(0).
    pub type_of_service: Option<u8>,
    /// Local ACK timeout exponent `n`: the timeout is 4.096 us * 2^n.
    pub ack_timeout_exponent: Option<u8>,
}

/// The parameters that the two sides agree on. Depths are always seen from *this* side:
/// `initiator_depth` is the number of RDMA READs that we may have in flight, `responder_resources`
/// the number that we serve; events have the peer's values swapped accordingly.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnParams {
    /// RDMA READs that we serve concurrently.
    pub responder_resources: u8,
    /// RDMA READs that we may have in flight.
    pub initiator_depth: u8,
    /// Retries after an acknowledge time-out, 0..=7.
    pub retry_count: u8,
    /// Retries after receiver-not-ready, 0..=6, or 7 for no limit.
    pub rnr_retry_count: u8,
    /// Private data: up to 56 bytes with a request, 196 with an accept.
    pub private_data: PrivateData,
}

/// Private data of a connection-management message, by value.
#[derive(Clone, Copy)]
pub struct PrivateData {
    length: u8,
    bytes: [u8; Self::MAX],
}

impl PrivateData {
    /// The most that any message carries, in bytes.
    pub const MAX: usize = 196;

    /// No private data: a length of zero bytes.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; Self::MAX] };

    /// Copies `bytes`; `None` if there are more than [`PrivateData::MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        data.length = u8::try_from(bytes.len()).ok()?;
        Some(data)
    }

    /// The bytes. A receiver may see more than were sent: the whole field of the message, padded
    /// with zeros.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Default for PrivateData {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl fmt::Debug for PrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_slice(), f)
    }
}

/// An event of a connection or listener. It holds no resources.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// Passive side: a peer requests a connection.
    ConnectRequest {
        /// The listener that the request came to.
        listener: ConnId,
        /// The new connection: `accept`, `reject` or `close` it.
        conn: ConnId,
        /// The most that we can agree to, seen from this side, and the peer's private data.
        params: ConnParams,
        /// The peer's IP address, and the source port that its request names, if it names one.
        peer: SocketAddr,
        /// The requesting process, on providers that reach only this machine.
        process: Option<LocalPeer>,
    },
    /// Active side: address and route are resolved.
    Resolved {
        /// The connection that `resolve` returned; create its queue pair before `connect`.
        conn: ConnId,
    },
    /// The connection is established. On the active side, the private data is that of the peer's
    /// REP.
    Established {
        /// The connection, on which messages may be sent from now on.
        conn: ConnId,
        /// The agreed parameters, seen from this side.
        params: ConnParams,
    },
    /// Active side: the peer rejected the connection.
    Rejected {
        /// The connection that was to be established; `close` discards it.
        conn: ConnId,
        /// The reject reason of the connection-management protocol; 28 means that `private_data`
        /// has the cause.
        reason: u16,
        /// The private data of the peer's reject.
        private_data: PrivateData,
    },
    /// The connection could not be established; on the passive side, after it was accepted.
    ConnectFailed {
        /// The connection that failed; `close` discards it.
        conn: ConnId,
        /// The step that failed, or the cause.
        failure: ConnectFailure,
    },
    /// The connection ended; the queue pair is in ERROR.
    Disconnected {
        /// The connection that ended; `close` discards it.
        conn: ConnId,
        /// True if the peer knows that the connection ended: it disconnected, or answered our
        /// [`disconnect`](crate::ConnectionManager::disconnect). If false, it may still carry out
        /// requests that it received.
        confirmed: bool,
    },
    /// The device of the connection or listener was removed.
    DeviceRemoved {
        /// The affected connection or listener.
        conn: ConnId,
    },
}

/// The reason why a connection could not be established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// Address resolution failed, as in `RDMA_CM_EVENT_ADDR_ERROR`.
    #[error("the address cannot be resolved")]
    Address,
    /// There is no route to the address.
    #[error("no route to the address")]
    Route,
    /// An ICMP error refused the packets: no RoCE v2 endpoint is open at the address.
    #[error("nothing answers RoCE at the address")]
    Refused,
    /// No process of this machine listens at the address in shared memory.
    #[error("nothing shares memory at the address")]
    NotShared,
    /// The process that listens at the address in shared memory runs as another user.
    #[error("another user's process has the address in shared memory")]
    Untrusted,
    /// The peer did not answer within the retries.
    #[error("no answer")]
    Unreachable,
    /// No answer within the retries at a UDP port other than 4791, which something else has at this
    /// address of ours: peers that are not Feedrail answer at 4791 only.
    #[error("no answer at another UDP port than 4791, which {} has", soft::roce_port_owner(*.0))]
    PortTaken(IpAddr),
    /// The peer ended the connection before it was established.
    #[error("the peer gave the connection up")]
    GivenUp,
    /// The peer has restarted and does not know the connection, or its answer is invalid.
    #[error("the peer does not know the connection")]
    Stale,
}

/// Why a connection-manager call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection has ended or never existed.
    #[error("no such connection")]
    UnknownConnection,
    /// The call is not allowed in the connection's state.
    #[error("the connection is not in a state for this")]
    WrongState,
    /// The private data is longer than the message can carry.
    #[error("private data too long")]
    PrivateDataTooLong,
    /// The system refused the call with this error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

//! Connection management: the RDMA-CM exchange that makes and ends reliable connections.

use core::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::{LocalPeer, soft};

/// Names a connection or a listener of one connection manager; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u64);

/// Reject reason "consumer defined": the private data says why.
pub const REJECT_CONSUMER_DEFINED: u16 = 28;

/// Options of a connection, or of those that come to a listener; what is not given there is as the
/// peer has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnOptions {
    /// Type of service of its packets. A software provider has the DSCP of it, and ECT(0).
    pub type_of_service: Option<u8>,
    /// Local ACK timeout exponent: 4.096 us times two to the power of it.
    pub ack_timeout_exponent: Option<u8>,
}

/// The parameters that the two sides agree on. Depths are always *ours*: `initiator_depth` is the
/// number of RDMA READs that we may have in flight, `responder_resources` the number that we serve;
/// an event that reports the peer's wishes has them already turned round.
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

    /// A copy of `bytes`, or `None` if there are more than [`PrivateData::MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        data.length = u8::try_from(bytes.len()).ok()?;
        Some(data)
    }

    /// The bytes. A receiver may see more than was sent: the room of the message, padded with
    /// zeros.
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

/// An event of a connection or listener. Plain data: it holds no resource.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum CmEvent {
    /// Passive: a peer asks for a connection.
    ConnectRequest {
        /// The listener that it came to.
        listener: ConnId,
        /// The new connection: `accept`, `reject` or `close` it.
        conn: ConnId,
        /// The most we can agree to, seen from our side, and the peer's private data.
        params: ConnParams,
        /// The peer's IP address, and the port that its request names as its source, if it names
        /// one.
        peer: SocketAddr,
        /// The process that asks, on providers that reach this machine only.
        process: Option<LocalPeer>,
    },
    /// Active: address and route are known.
    Resolved {
        /// The connection that `resolve` returned; it needs a queue pair before `connect`.
        conn: ConnId,
    },
    /// Both sides are ready. On the active side the private data is that of the peer's accept.
    Established {
        /// The connection, which carries messages from now on.
        conn: ConnId,
        /// The agreed parameters, seen from our side.
        params: ConnParams,
    },
    /// Active: the peer rejected the connection.
    Rejected {
        /// The connection that `connect` asked for; `close` forgets it.
        conn: ConnId,
        /// The reject reason of the connection-management protocol; 28 means that `private_data`
        /// has the cause.
        reason: u16,
        /// The private data of the peer's reject.
        private_data: PrivateData,
    },
    /// The connection could not be made; on the passive side, it was accepted and not established.
    ConnectFailed {
        /// The connection that failed; `close` forgets it.
        conn: ConnId,
        /// The step that failed, or the cause.
        failure: ConnectFailure,
    },
    /// The connection ended; the queue pair is in ERROR.
    Disconnected {
        /// The connection that ended; `close` forgets it.
        conn: ConnId,
        /// The peer knows that the connection ended: it ended the connection, or answered our
        /// [`disconnect`](crate::ConnectionManager::disconnect). If not, it may still carry out
        /// requests that it received.
        confirmed: bool,
    },
    /// The device was removed under the connection or listener.
    DeviceRemoved {
        /// The connection or listener whose device is gone.
        conn: ConnId,
    },
}

/// The cause for which a connection could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// Address resolution failed, as in `RDMA_CM_EVENT_ADDR_ERROR`.
    #[error("the address cannot be resolved")]
    Address,
    /// There is no route to it.
    #[error("no route to the address")]
    Route,
    /// An ICMP error refused the packets: no RoCE v2 endpoint is open at the address.
    #[error("nothing answers RoCE at the address")]
    Refused,
    /// No process of this machine listens at the address in shared memory.
    #[error("nothing shares memory at the address")]
    NotShared,
    /// The process that listens at the address in shared memory is another user's.
    #[error("another user's process has the address in shared memory")]
    Untrusted,
    /// No answer within the retries.
    #[error("no answer")]
    Unreachable,
    /// No answer within the retries at a UDP port other than 4791, which something else has at this
    /// address of ours: peers that are not Feedrail answer at 4791 only.
    #[error("no answer at another UDP port than 4791, which {} has", soft::roce_port_owner(*.0))]
    PortTaken(IpAddr),
    /// The peer gave the connection up before it was established.
    #[error("the peer gave the connection up")]
    GivenUp,
    /// The peer was restarted and does not know the connection, or its answer makes no sense.
    #[error("the peer does not know the connection")]
    Stale,
}

/// Why a connection-manager call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// The connection ended or never was.
    #[error("no such connection")]
    UnknownConnection,
    /// The call does not fit the connection's state.
    #[error("the connection is not in a state for this")]
    WrongState,
    /// More private data than the message carries.
    #[error("private data too long")]
    PrivateDataTooLong,
    /// The system refused the call; the source is its error.
    #[error(transparent)]
    Io(#[from] io::Error),
}

//! Events of connections, and errors of a manager's functions.

use core::net::SocketAddr;

use super::{Agreement, ConnectionId, IpHeader, ListenerId, MadPrivateData, RejectReason};
use crate::{PathMtu, Qpn};

/// An event of a connection.
///
/// A connection ends with exactly one of `Rejected`, `Failed` and `Disconnected`, and no event
/// follows. It still exists until the caller closes it. If a passive connection ends before the
/// caller got its `Request`, there is no event of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerEvent {
    /// Passive side: a peer requests a connection. The caller must `accept` or `reject` it.
    Request {
        /// The listener that the REQ came to.
        listener: ListenerId,
        /// Identifier of the new connection.
        connection: ConnectionId,
        /// The parameters of the peer's REQ.
        request: ConnectionRequest,
    },
    /// Active side: the peer accepted. The caller connects its queue pair, then calls `confirm`.
    Accepted {
        /// The connection that was accepted.
        connection: ConnectionId,
        /// The agreed parameters, for the queue pair.
        agreement: Agreement,
        /// Private data of the peer's consumer: 196 bytes, padded with zeros.
        private_data: MadPrivateData,
    },
    /// Passive side: the peer has connected its queue pair. (On the active side, the connection is
    /// established by `confirm`.)
    Established {
        /// The connection that is established.
        connection: ConnectionId,
    },
    /// The peer rejected the connection, or withdrew its request.
    Rejected {
        /// The connection that was rejected.
        connection: ConnectionId,
        /// The reason in the REJ.
        reason: RejectReason,
        /// Private data of the peer's consumer: 148 bytes, padded with zeros.
        private_data: MadPrivateData,
    },
    /// The connection was not established.
    Failed {
        /// The connection that failed.
        connection: ConnectionId,
        /// The cause of the failure.
        failure: ConnectionFailure,
    },
    /// The connection has ended: the peer disconnected, or answered our `disconnect`, or the
    /// retries are used up.
    Disconnected {
        /// The connection that has ended.
        connection: ConnectionId,
        /// True if the peer has disconnected or answered. If false, it may still consider the
        /// connection established.
        confirmed: bool,
    },
}

impl ManagerEvent {
    /// The connection of the event.
    pub fn connection(&self) -> ConnectionId {
        match *self {
            Self::Request { connection, .. }
            | Self::Accepted { connection, .. }
            | Self::Established { connection }
            | Self::Rejected { connection, .. }
            | Self::Failed { connection, .. }
            | Self::Disconnected { connection, .. } => connection,
        }
    }
}

/// The connection that the active peer requests. Depths are seen from *our* side: the RDMA READs
/// that the peer would have in flight are those that we would serve, and vice versa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRequest {
    /// The endpoint of the peer.
    pub peer: SocketAddr,
    /// The addresses of both sides; `None` unless the service id is RDMA-CM's.
    pub addresses: Option<IpHeader>,
    /// The peer's queue pair number.
    pub remote_qpn: Qpn,
    /// RDMA READs that the peer would like to have in flight, and we would serve.
    pub responder_resources: u8,
    /// RDMA READs that the peer would serve concurrently.
    pub initiator_depth: u8,
    /// Maximum number of our retries after an ACK timeout, 0..=7.
    pub retry_count: u8,
    /// Maximum number of our retries after an RNR NAK, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// Path MTU that the peer requests.
    pub path_mtu: PathMtu,
    /// Private data of the peer's consumer: 56 bytes with an RDMA-CM service id, else 92, padded
    /// with zeros.
    pub private_data: MadPrivateData,
}

/// The reason why a connection was not established.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionFailure {
    /// The peer did not answer within the retries.
    #[error("no answer")]
    Timeout,
    /// The network reported that the peer is unreachable.
    #[error("the peer is unreachable")]
    Unreachable,
    /// The peer used a queue pair or communication id of another connection with us: it was
    /// restarted.
    #[error("stale connection: the peer was restarted")]
    Stale,
    /// The half-open connection was evicted for newer requests.
    #[error("evicted: too many connections are half-open")]
    Evicted,
    /// The peer's REP is invalid.
    #[error("the peer's reply is invalid")]
    InvalidReply,
}

/// The reason why a function failed. It had no effect then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection was closed or never existed.
    #[error("no such connection")]
    UnknownConnection,
    /// The connection is not in the required state.
    #[error("the connection is not in a state for this")]
    WrongState,
    /// The private data does not fit into the message.
    #[error("private data too long")]
    PrivateDataTooLong,
    /// The service id already has a listener.
    #[error("the service has a listener already")]
    ServiceInUse,
    /// The maximum number of connections is reached.
    #[error("too many connections")]
    TooManyConnections,
}

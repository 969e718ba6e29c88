//! Events of connections, and errors of calls.

use core::net::SocketAddr;

use super::{Agreement, ConnectionId, IpHeader, ListenerId, MadPrivateData, RejectReason};
use crate::{PathMtu, Qpn};

/// An event of a connection.
///
/// Exactly one of `Rejected`, `Failed` and `Disconnected` ends a connection, and no event follows.
/// The connection stays known until the caller closes it. A request that ends before the caller
/// took its event produces no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerEvent {
    /// Passive: a peer asks for a connection. `accept` or `reject` it.
    Request {
        /// The listener that it came to.
        listener: ListenerId,
        /// Identifier of the new connection.
        connection: ConnectionId,
        /// The parameters that the peer asks for.
        request: ConnectionRequest,
    },
    /// Active: the peer accepted. Connect the queue pair, then `confirm`.
    Accepted {
        /// The connection that the event is about.
        connection: ConnectionId,
        /// Parameters for the queue pair, as both sides agreed.
        agreement: Agreement,
        /// Private data of the peer's consumer: 196 bytes, padded with zeros.
        private_data: MadPrivateData,
    },
    /// Passive: the peer has connected its queue pair. (The active side knows by its own
    /// `confirm`.)
    Established {
        /// The connection that the event is about.
        connection: ConnectionId,
    },
    /// The peer does not want the connection, or no longer.
    Rejected {
        /// The connection that the event is about.
        connection: ConnectionId,
        /// Reason that the REJ gives.
        reason: RejectReason,
        /// Private data of the peer's consumer: 148 bytes, padded with zeros.
        private_data: MadPrivateData,
    },
    /// The connection did not come about.
    Failed {
        /// The connection that the event is about.
        connection: ConnectionId,
        /// Cause for which the connection did not come about.
        failure: ConnectionFailure,
    },
    /// The connection has ended: the peer ended it, or answered our `disconnect`, or did not within
    /// the retries.
    Disconnected {
        /// The connection that the event is about.
        connection: ConnectionId,
        /// Whether the peer has ended the connection, or answered. If not, it may still hold the
        /// connection.
        confirmed: bool,
    },
}

impl ManagerEvent {
    /// The connection that it is about.
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

/// The connection that the active peer asks for. Depths are seen from *our* side: the READs that
/// the peer wants to have in flight are those that we would serve, and the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRequest {
    /// The endpoint of the peer.
    pub peer: SocketAddr,
    /// The addresses of both sides; `None` when the service id is not RDMA-CM's.
    pub addresses: Option<IpHeader>,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// RDMA READs that the peer would like us to serve concurrently.
    pub responder_resources: u8,
    /// RDMA READs that the peer would serve concurrently.
    pub initiator_depth: u8,
    /// Our retries after an acknowledge time-out, 0..=7.
    pub retry_count: u8,
    /// Our retries after receiver-not-ready, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// Payload of a full packet.
    pub path_mtu: PathMtu,
    /// Private data of the peer's consumer: 56 bytes with an RDMA-CM service id, else 92, padded
    /// with zeros.
    pub private_data: MadPrivateData,
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionFailure {
    /// No answer, retries included.
    #[error("no answer")]
    Timeout,
    /// The network reports that the peer is unreachable.
    #[error("the peer is unreachable")]
    Unreachable,
    /// The peer names a queue pair or a connection that it already has with us: it was restarted.
    #[error("stale connection: the peer was restarted")]
    Stale,
    /// The connection was never established, and made way for newer requests.
    #[error("evicted: too many connections are half-open")]
    Evicted,
    /// The peer's answer is invalid.
    #[error("the peer's reply is invalid")]
    InvalidReply,
}

/// Why a call was refused. Nothing has changed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The connection was closed or never was.
    #[error("no such connection")]
    UnknownConnection,
    /// The connection is not at that point.
    #[error("the connection is not in a state for this")]
    WrongState,
    /// More private data than the message carries.
    #[error("private data too long")]
    PrivateDataTooLong,
    /// The service id has a listener already.
    #[error("the service has a listener already")]
    ServiceInUse,
    /// The limit of connections is reached.
    #[error("too many connections")]
    TooManyConnections,
}

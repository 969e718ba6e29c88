//! What happens to connections, and how calls fail.

use core::net::SocketAddr;

use super::{Agreement, ConnectionId, IpHeader, ListenerId, MadPrivateData, RejectReason};
use crate::{PathMtu, Qpn};

/// What happened to a connection.
///
/// Exactly one of `Rejected`, `Failed` and `Disconnected` ends it, and nothing follows. It stays
/// known until the caller closes it. A request that is over before the caller took its event is
/// never heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagerEvent {
    /// Passive: somebody wants to connect. `accept` or `reject` it.
    Request {
        /// The listener that it came to.
        listener: ListenerId,
        /// The new connection.
        connection: ConnectionId,
        /// What the peer wishes.
        request: ConnectionRequest,
    },
    /// Active: the peer accepted. Connect the queue pair, then `confirm`.
    Accepted {
        /// The connection.
        connection: ConnectionId,
        /// What was agreed.
        agreement: Agreement,
        /// What the peer's consumer said: 196 bytes, padded with zeros.
        private_data: MadPrivateData,
    },
    /// Passive: the peer has connected its queue pair. (The active side knows by its own
    /// `confirm`.)
    Established {
        /// The connection.
        connection: ConnectionId,
    },
    /// The peer does not want the connection, or no longer.
    Rejected {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        reason: RejectReason,
        /// What the peer's consumer said: 148 bytes, padded with zeros.
        private_data: MadPrivateData,
    },
    /// The connection did not come about.
    Failed {
        /// The connection.
        connection: ConnectionId,
        /// Why.
        failure: ConnectionFailure,
    },
    /// The connection is over: the peer ended it, or answered our `disconnect`, or did not within
    /// the retries.
    Disconnected {
        /// The connection.
        connection: ConnectionId,
        /// The peer knows it too: it ended the connection, or answered. If not, it may still
        /// believe in it.
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

/// What the active peer wishes. Depths are seen from *our* side: what the peer wants to have in
/// flight is what we would serve, and the reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionRequest {
    /// The endpoint of the peer.
    pub peer: SocketAddr,
    /// Who says to connect from where to where; none when the service id is not RDMA-CM's.
    pub addresses: Option<IpHeader>,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// RDMA READs that the peer would like us to serve at once.
    pub responder_resources: u8,
    /// RDMA READs that the peer would serve at once.
    pub initiator_depth: u8,
    /// Our retries after an acknowledge time-out, 0..=7.
    pub retry_count: u8,
    /// Our retries after receiver-not-ready, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// Payload of a full packet.
    pub path_mtu: PathMtu,
    /// What the peer's consumer says: 56 bytes with an RDMA-CM service id, else 92, padded with
    /// zeros.
    pub private_data: MadPrivateData,
}

/// Why a connection did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionFailure {
    /// No answer, retries included.
    #[error("no answer")]
    Timeout,
    /// The network says that nobody is there.
    #[error("nobody is there")]
    Unreachable,
    /// The peer names a queue pair or a connection that it already has with us: it was restarted.
    #[error("stale connection: the peer was restarted")]
    Stale,
    /// It was never established, and made way for newer requests.
    #[error("too many others ask")]
    Crowded,
    /// The peer's answer makes no sense.
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
    /// Somebody listens there already.
    #[error("somebody listens there already")]
    ServiceInUse,
    /// As many connections as the limit allows.
    #[error("too many connections")]
    TooManyConnections,
}

//! Messages between an acceptor and the poll groups.

use std::sync::Arc;

use ::rdma::{ConnId, Provider};

use super::negotiation::Negotiated;
use crate::controller::Lost;
use crate::inventory::port::Port;
use crate::limits::peer::RemotePeer;

/// Message to a poll group.
pub(super) enum ToGroup<P: Provider> {
    /// Take over this connection.
    Adopt(Box<NewConnection<P>>),
    /// The connection manager reported that this connection has ended.
    Lost(ConnId),
    /// End this connection, displaced by newer ones, unless its Connect has succeeded.
    Displace(ConnId),
    /// The device reported a failure of the queue pair with this number.
    QueuePairFailed(u32),
    /// The device was removed or has failed: end every connection.
    DeviceFailed,
}

/// A connection that the acceptor hands over to a poll group.
pub(super) struct NewConnection<P: Provider> {
    pub(super) conn: ConnId,
    pub(super) qp: P::NewQp,
    pub(super) negotiated: Negotiated,
    pub(super) port: Arc<Port>,
    pub(super) peer: RemotePeer,
    pub(super) lost: Arc<Lost>,
}

/// Message from a poll group to an acceptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToAcceptor {
    pub(super) conn: ConnId,
    pub(super) update: ConnectionUpdate,
}

/// Event of a connection in its poll group, and what the acceptor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionUpdate {
    /// Receives are posted: accept the connection.
    Ready,
    /// The Connect command has succeeded: count the connection as connected.
    Connected,
    /// There is no memory for it, or the target is stopping: reject it.
    Refused,
    /// The queue pair is in ERROR: disconnect.
    Ending,
    /// All its resources have been freed, and no further message comes.
    Gone,
}

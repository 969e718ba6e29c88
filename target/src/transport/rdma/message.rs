//! Messages between a reception and the poll groups.

use std::sync::Arc;

use ::rdma::{ConnId, Provider};

use super::negotiation::Negotiated;
use crate::controller::Lost;
use crate::inventory::port::Port;
use crate::limits::peer::RemotePeer;

/// To a poll group.
pub(super) enum ToGroup<P: Provider> {
    /// A connection to take over.
    Adopt(Box<NewConnection<P>>),
    /// The connection manager lost a connection.
    Lost(ConnId),
    /// Newer connections need the place of this one, unless its Connect has succeeded.
    Displace(ConnId),
    /// An event of the device: the queue pair with this number failed.
    QueuePairFailed(u32),
    /// The device is gone: every connection ends.
    DeviceFailed,
}

/// A connection on its way to its poll group.
pub(super) struct NewConnection<P: Provider> {
    pub(super) conn: ConnId,
    pub(super) qp: P::NewQp,
    pub(super) negotiated: Negotiated,
    pub(super) port: Arc<Port>,
    pub(super) peer: RemotePeer,
    pub(super) lost: Arc<Lost>,
}

/// A message from a poll group to a reception.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToReception {
    pub(super) conn: ConnId,
    pub(super) update: ConnectionUpdate,
}

/// An event of a connection in its poll group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionUpdate {
    /// Its receives are posted: accept it.
    Ready,
    /// Its Connect has succeeded.
    Connected,
    /// There is no memory for it.
    Refused,
    /// Its queue pair is in ERROR: disconnect it.
    Ending,
    /// Its queue pair is released.
    Gone,
}

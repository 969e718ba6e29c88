//! The RDMA connections of an engine.

use std::collections::BTreeMap;

use nvme_proto::Qid;
use rdma::ConnId;

use crate::engine::arena::ControllerKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    /// Connection of a queue that is being established.
    Opening { controller: ControllerKey, qid: Qid },
    /// Connection of a queue that is established and may carry commands.
    Open { controller: ControllerKey },
    /// Connection that this host has disconnected; the reply of the peer is awaited.
    Closing,
}

impl ConnectionRole {
    /// Returns the controller of the queue, unless it is disconnected.
    pub(crate) fn controller(self) -> Option<ControllerKey> {
        match self {
            Self::Opening { controller, .. } | Self::Open { controller } => Some(controller),
            Self::Closing => None,
        }
    }

    /// Returns whether no event of the connection manager is expected.
    fn is_idle(self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

/// All connections of an engine by identifier, with the number that are not idle.
#[derive(Default)]
pub(crate) struct Connections {
    all: BTreeMap<ConnId, ConnectionRole>,
    busy: usize,
}

impl Connections {
    /// Adds a connection, or changes its use.
    pub(crate) fn insert(&mut self, id: ConnId, conn: ConnectionRole) {
        self.remove(id);
        self.busy += usize::from(!conn.is_idle());
        self.all.insert(id, conn);
    }

    pub(crate) fn remove(&mut self, id: ConnId) {
        if let Some(conn) = self.all.remove(&id) {
            self.busy -= usize::from(!conn.is_idle());
        }
    }

    pub(crate) fn get(&self, id: ConnId) -> Option<ConnectionRole> {
        self.all.get(&id).copied()
    }

    pub(crate) fn of(
        &self,
        controller: ControllerKey,
    ) -> impl Iterator<Item = (ConnId, ConnectionRole)> + '_ {
        let all = self.all.iter().map(|(&id, &conn)| (id, conn));
        all.filter(move |(_, conn)| conn.controller() == Some(controller))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether no connection is being established or disconnected.
    pub(crate) fn are_idle(&self) -> bool {
        self.busy == 0
    }
}

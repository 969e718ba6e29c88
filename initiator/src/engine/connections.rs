//! The connections of an engine.

use std::collections::BTreeMap;

use nvme_proto::Qid;
use rdma::ConnId;

/// The use of a connection of the connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionRole {
    /// A queue that is being connected.
    Opening { controller: usize, qid: Qid },
    /// A queue that is connected and may carry commands.
    Open { controller: usize },
    /// Ended by us: only the peer's answer to the disconnect is missing.
    Closing,
}

impl ConnectionRole {
    /// The controller that the queue belongs to.
    pub(crate) fn controller(self) -> Option<usize> {
        match self {
            Self::Opening { controller, .. } | Self::Open { controller } => Some(controller),
            Self::Closing => None,
        }
    }

    /// Whether nothing is expected of it but data.
    fn is_idle(self) -> bool {
        matches!(self, Self::Open { .. })
    }
}

/// All connections by name.
#[derive(Default)]
pub(crate) struct Connections {
    all: BTreeMap<ConnId, ConnectionRole>,
    busy: usize,
}

impl Connections {
    /// Adds a connection, or says what it is now.
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

    /// Connections of a controller.
    pub(crate) fn of(
        &self,
        controller: usize,
    ) -> impl Iterator<Item = (ConnId, ConnectionRole)> + '_ {
        let all = self.all.iter().map(|(&id, &conn)| (id, conn));
        all.filter(move |(_, conn)| conn.controller() == Some(controller))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether no connection is being made or ended.
    pub(crate) fn are_idle(&self) -> bool {
        self.busy == 0
    }
}

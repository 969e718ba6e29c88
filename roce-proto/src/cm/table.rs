//! The table of a manager's connections, with its indexes.

use alloc::collections::{BTreeMap, BTreeSet};
use core::net::{IpAddr, SocketAddr};

use super::connection::{ConnectionState, ManagedConnection, Remote};
use super::{CommId, ConnectionId};
use crate::{Qpn, Time};

/// A peer's identifiers of a connection: endpoint, GUID, communication id.
pub(super) type RemoteName = (SocketAddr, u64, CommId);

/// A peer's queue pair: endpoint, GUID, queue pair number.
type RemoteQp = (SocketAddr, u64, Qpn);

/// Connections, indexed by every identifier that a message or the caller may use. Ended ones are
/// found only by the caller's.
#[derive(Debug, Default)]
pub(super) struct ConnectionTable {
    connections: BTreeMap<ConnectionId, ManagedConnection>,
    by_comm_id: BTreeMap<CommId, ConnectionId>,
    by_remote: BTreeMap<RemoteName, ConnectionId>,
    by_qp: BTreeMap<RemoteQp, ConnectionId>,
    timers: BTreeSet<(Time, ConnectionId)>,
    /// The half-open connections. Identifiers increase, so the first is the oldest.
    half_open: BTreeSet<ConnectionId>,
    half_open_by_peer: BTreeMap<IpAddr, BTreeSet<ConnectionId>>,
    next_id: u64,
}

impl ConnectionTable {
    pub(super) fn insert(&mut self, connection: ManagedConnection) -> ConnectionId {
        let id = ConnectionId(self.next_id);
        self.next_id += 1;
        self.by_comm_id.insert(connection.local, id);
        if let Some(deadline) = connection.state.deadline() {
            self.timers.insert((deadline, id));
        }
        if connection.state.is_half_open() {
            self.half_open.insert(id);
            let peer = connection.agreement.peer.ip();
            self.half_open_by_peer.entry(peer).or_default().insert(id);
        }
        let remote = connection.remote;
        self.connections.insert(id, connection);
        if let Some(remote) = remote {
            self.learn(id, remote);
        }
        id
    }

    /// Adds the peer's identifiers to a connection; the agreement already has its queue pair.
    pub(super) fn learn(&mut self, id: ConnectionId, remote: Remote) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.remote = Some(remote);
        let agreement = &connection.agreement;
        self.by_remote.insert((agreement.peer, remote.ca_guid, remote.comm_id), id);
        self.by_qp.insert((agreement.peer, remote.ca_guid, agreement.remote_qpn), id);
    }

    pub(super) fn get(&self, id: ConnectionId) -> Option<&ManagedConnection> {
        self.connections.get(&id)
    }

    /// Mutable access to a connection; its state and identifiers must not be changed through it.
    pub(super) fn get_mut(&mut self, id: ConnectionId) -> Option<&mut ManagedConnection> {
        self.connections.get_mut(&id)
    }

    /// The connection with `peer` that has this local communication id.
    pub(super) fn by_comm_id(&self, comm_id: CommId, peer: SocketAddr) -> Option<ConnectionId> {
        let id = *self.by_comm_id.get(&comm_id)?;
        (self.connections.get(&id)?.agreement.peer == peer).then_some(id)
    }

    pub(super) fn by_remote(&self, name: RemoteName) -> Option<ConnectionId> {
        self.by_remote.get(&name).copied()
    }

    pub(super) fn by_qp(&self, peer: SocketAddr, ca_guid: u64, qpn: Qpn) -> Option<ConnectionId> {
        self.by_qp.get(&(peer, ca_guid, qpn)).copied()
    }

    pub(super) fn is_comm_id_taken(&self, comm_id: CommId) -> bool {
        self.by_comm_id.contains_key(&comm_id)
    }

    pub(super) fn len(&self) -> usize {
        self.connections.len()
    }

    pub(super) fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// The oldest half-open connection, if there are at least `limit`.
    pub(super) fn half_open_beyond(&self, limit: usize) -> Option<ConnectionId> {
        oldest_beyond(&self.half_open, limit)
    }

    /// The oldest half-open connection of an address, if it has at least `limit`.
    pub(super) fn half_open_from_beyond(&self, ip: IpAddr, limit: usize) -> Option<ConnectionId> {
        oldest_beyond(self.half_open_by_peer.get(&ip)?, limit)
    }

    /// The connections that wait for an answer, in the order of their deadlines.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (Time, ConnectionId)> + '_ {
        self.timers.iter().copied()
    }

    /// The first of [`ConnectionTable::waiting`].
    pub(super) fn next_waiting(&self) -> Option<(Time, ConnectionId)> {
        self.timers.first().copied()
    }

    /// Sets the state of a connection and updates the indexes.
    pub(super) fn set_state(&mut self, id: ConnectionId, state: ConnectionState) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(deadline) = connection.state.deadline() {
            self.timers.remove(&(deadline, id));
        }
        if let Some(deadline) = state.deadline() {
            self.timers.insert((deadline, id));
        }
        let was_half_open = connection.state.is_half_open();
        connection.state = state;
        if was_half_open && !connection.state.is_half_open() {
            self.no_longer_half_open(id);
        }
    }

    /// Calls `change` for a connection's repeated message, and updates its deadline in the index.
    pub(super) fn reschedule<R>(
        &mut self,
        id: ConnectionId,
        change: impl FnOnce(&mut super::connection::Resend) -> R,
    ) -> Option<R> {
        let resend = self.connections.get_mut(&id)?.state.resend()?;
        self.timers.remove(&(resend.deadline, id));
        let result = change(resend);
        self.timers.insert((resend.deadline, id));
        Some(result)
    }

    /// Changes the local communication id of a connection.
    pub(super) fn rename(&mut self, id: ConnectionId, comm_id: CommId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        self.by_comm_id.remove(&connection.local);
        connection.local = comm_id;
        self.by_comm_id.insert(comm_id, id);
    }

    /// Ends a connection and removes it from the indexes; returns the peer's identifiers, if known.
    pub(super) fn end(&mut self, id: ConnectionId) -> Option<RemoteName> {
        self.set_state(id, ConnectionState::Ended);
        let connection = self.connections.get(&id)?;
        let (peer, qpn) = (connection.agreement.peer, connection.agreement.remote_qpn);
        remove_if(&mut self.by_comm_id, &connection.local, id);
        let remote = connection.remote?;
        let name = (peer, remote.ca_guid, remote.comm_id);
        remove_if(&mut self.by_remote, &name, id);
        remove_if(&mut self.by_qp, &(peer, remote.ca_guid, qpn), id);
        Some(name)
    }

    pub(super) fn remove(&mut self, id: ConnectionId) {
        self.end(id);
        self.connections.remove(&id);
    }

    fn no_longer_half_open(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get(&id) else { return };
        self.half_open.remove(&id);
        let ip = connection.agreement.peer.ip();
        if let Some(of_peer) = self.half_open_by_peer.get_mut(&ip) {
            of_peer.remove(&id);
            if of_peer.is_empty() {
                self.half_open_by_peer.remove(&ip);
            }
        }
    }
}

fn oldest_beyond(ids: &BTreeSet<ConnectionId>, limit: usize) -> Option<ConnectionId> {
    if ids.len() >= limit { ids.first().copied() } else { None }
}

/// Removes an index entry unless it refers to another connection by now.
fn remove_if<K: Ord>(names: &mut BTreeMap<K, ConnectionId>, name: &K, id: ConnectionId) {
    if names.get(name) == Some(&id) {
        names.remove(name);
    }
}

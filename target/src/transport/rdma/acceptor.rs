//! Acceptor of the connections of one RDMA device.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use ::rdma::{
    CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, DeviceEvent,
    Provider, QpConfig, Time,
};
use crossbeam::channel::Receiver;
use nvme_proto::rdma_cm::RejectStatus;

use super::device_parts::{DeviceParts, GroupInbox};
use super::message::{ConnectionUpdate, NewConnection, ToAcceptor, ToGroup};
use super::negotiation::{Negotiated, rejection};
use super::tracked::{GroupAnswer, TrackedEvent, TrackedProgress};
use crate::controller::{Associations, Lost};
use crate::doorbell::Doorbell;
use crate::inventory::port::Port;
use crate::limits::connection_quota::Full;
use crate::limits::displacing_set::{DisplacingLimits, DisplacingSet};
use crate::limits::peer::{Party, RemotePeer};
use crate::limits::{Limits, UNCONNECTED, UNCONNECTED_PER_ADDRESS};
use crate::transport::{Acceptor, AcceptorStats, DeviceFailure};

/// Maximum number of connection manager events handled in one turn, so that a flood of requests
/// does not block other work.
const EVENTS_AT_ONCE: usize = 64;

/// Connection manager of one device, its listeners and its connections.
pub(crate) struct RdmaAcceptor<P: Provider> {
    cm: P::Cm,
    device: P::Device,
    associations: Arc<Associations>,
    ports: BTreeMap<ConnId, Arc<Port>>,
    groups: Vec<GroupLoad<P>>,
    connections: BTreeMap<ConnId, TrackedConnection>,
    /// Connections whose Connect has not succeeded and that are not ending, oldest first.
    unconnected: DisplacingSet<ConnId>,
    inbox: Receiver<ToAcceptor>,
    bell: Arc<Doorbell>,
    failure: Arc<DeviceFailure>,
    stats: AcceptorStats,
}

/// Inbox of a poll group, and the number of its connections.
struct GroupLoad<P: Provider> {
    port: GroupInbox<P>,
    connections: u32,
}

/// Reason that a connection is rejected.
#[derive(Debug, thiserror::Error)]
enum ConnectionRefusal {
    #[error("{0}")]
    Request(#[from] RejectStatus),
    #[error("the port is closed")]
    Closed,
    #[error(transparent)]
    Full(#[from] Full),
    #[error("{0} connections have sent no Connect yet or are ending; it may try again")]
    Busy(usize),
    #[error(
        "no queue pair: {0}; a device has room for fewer or shorter queues than limits.connections and limits.queue_depth allow"
    )]
    QueuePair(CmError),
}

impl ConnectionRefusal {
    fn status(&self) -> RejectStatus {
        match self {
            Self::Request(status) => *status,
            Self::Closed | Self::Full(_) | Self::Busy(_) | Self::QueuePair(_) => {
                RejectStatus::NO_RESOURCES
            }
        }
    }
}

/// A connection, until both its poll group and the connection manager are done with it.
#[derive(Debug)]
struct TrackedConnection {
    /// Index of its poll group.
    group: usize,
    party: Party,
    acceptance: ConnParams,
    /// Flag, set when it is lost, that other cores see before its own core handles that.
    lost: Arc<Lost>,
    progress: TrackedProgress,
}

impl<P: Provider> RdmaAcceptor<P> {
    /// Creates the acceptor of a device, and takes the connection manager of the device.
    ///
    /// # Errors
    /// The error of creating the connection manager.
    pub(crate) fn new(
        parts: DeviceParts<P>,
        groups: Vec<GroupInbox<P>>,
        associations: Arc<Associations>,
    ) -> std::io::Result<Self> {
        let cm = parts.device.connection_manager()?;
        warn_of_few_completions(&parts.device, groups.len(), associations.inventory().limits());
        let group = |port| GroupLoad { port, connections: 0 };
        Ok(Self {
            cm,
            device: parts.device,
            associations,
            ports: BTreeMap::new(),
            groups: groups.into_iter().map(group).collect(),
            connections: BTreeMap::new(),
            unconnected: DisplacingSet::new(DisplacingLimits {
                all: UNCONNECTED,
                of_party: UNCONNECTED_PER_ADDRESS,
            }),
            inbox: parts.inbox,
            bell: parts.acceptor_bell,
            failure: parts.failure,
            stats: AcceptorStats::default(),
        })
    }

    fn handle_event(&mut self, now: Time, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { listener, conn, params, peer, process } => {
                let peer = RemotePeer { address: peer, process };
                self.requested(now, listener, conn, &params, peer);
            }
            CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                self.lost(conn)
            }
            CmEvent::DeviceRemoved { .. } => self.device_failed(now, "it was removed"),
            // The poll group needs no event for an established connection: commands may arrive
            // before it.
            _ => {}
        }
    }

    /// Handles asynchronous events of the device; true if there were any.
    fn poll_device(&mut self, now: Time) -> bool {
        let mut progress = false;
        while !self.failure.is_noted() {
            match self.device.next_async() {
                Ok(Some(event)) => self.device_says(now, event),
                Ok(None) => break,
                Err(error) => self.device_failed(now, &error.to_string()),
            }
            progress = true;
        }
        progress
    }

    fn device_says(&mut self, now: Time, event: DeviceEvent) {
        let (address, device) = (self.device.local_ip(), &self.device.caps().name);
        match event {
            DeviceEvent::PortUp => tracing::info!(%address, device, "the port is up"),
            DeviceEvent::PortDown => {
                tracing::warn!(%address, device, "the port is down: hosts cannot be reached until it is up again");
            }
            DeviceEvent::QpFatal { qpn } => self.send_to_groups(|| ToGroup::QueuePairFailed(qpn)),
            DeviceEvent::CqError => self.device_failed(now, "a completion queue overran"),
            DeviceEvent::DeviceFatal => self.device_failed(now, "it reports a fatal error"),
            other => tracing::debug!(%address, device, ?other, "an event of the device"),
        }
    }

    /// Handles the failure or removal of the device: its connections end, and no new one is
    /// accepted.
    fn device_failed(&mut self, now: Time, why: &str) {
        if !self.failure.note() {
            return;
        }
        let (address, device) = (self.device.local_ip(), &self.device.caps().name);
        tracing::error!(
            %address,
            device,
            "the RDMA device failed ({why}): its connections end, and no host is served at this address until \
             there is a device again"
        );
        self.close();
        self.send_to_groups(|| ToGroup::DeviceFailed);
        let all = self.connections.iter().map(|(&conn, connection)| (conn, connection.progress));
        for (conn, progress) in all.collect::<Vec<_>>() {
            // A disconnect may still reach the host, but its confirmation is not waited for.
            if matches!(progress, TrackedProgress::Accepted { .. }) {
                self.cm.disconnect(now, conn);
            }
            self.step(conn, TrackedEvent::Lost);
        }
    }

    fn send_to_groups(&self, message: impl Fn() -> ToGroup<P>) {
        self.groups.iter().for_each(|group| group.port.send(message()));
    }

    fn requested(
        &mut self,
        now: Time,
        listener: ConnId,
        conn: ConnId,
        params: &ConnParams,
        peer: RemotePeer,
    ) {
        let port = self.ports.get(&listener).cloned();
        let result = port.ok_or(ConnectionRefusal::Closed).and_then(|port| {
            let limits = self.associations.inventory().limits();
            let negotiated = Negotiated::new(params, self.device.caps(), limits)?;
            self.assign_to_group(conn, params, peer, port, negotiated)
        });
        match result {
            Ok(()) => self.make_room(conn, peer.party()),
            Err(refusal) => self.reject(now, conn, peer, &refusal),
        }
    }

    /// Adds a connection without Connect; above the limit an older one is displaced.
    fn make_room(&mut self, conn: ConnId, party: Party) {
        let displaced = self.unconnected.add(conn, party);
        if let Some(connection) = displaced.and_then(|conn| self.connections.get(&conn)) {
            let port = &self.groups[connection.group].port;
            displaced.into_iter().for_each(|conn| port.send(ToGroup::Displace(conn)));
        }
    }

    /// Creates the queue pair of a connection and sends it to the core with the fewest connections.
    fn assign_to_group(
        &mut self,
        conn: ConnId,
        params: &ConnParams,
        peer: RemotePeer,
        port: Arc<Port>,
        negotiated: Negotiated,
    ) -> Result<(), ConnectionRefusal> {
        // The permit itself is taken when Connect succeeds, if there still is one then.
        self.associations.may_admit(peer.party())?;
        self.check_nameless(peer.party())?;
        let group = self.choose_group();
        let config = QpConfig {
            send_wr: negotiated.send_entries(),
            recv_wr: negotiated.entries.into(),
            send_sge: 1,
            recv_sge: 2,
            inline_bytes: 0,
        };
        let place = &mut self.groups[group];
        let qp = (self.cm)
            .create_qp(conn, &place.port.handle, &self.device, &config)
            .map_err(ConnectionRefusal::QueuePair)?;
        place.connections += 1;
        let acceptance = negotiated.acceptance(params);
        let lost = Arc::new(Lost::default());
        let connection = TrackedConnection {
            group,
            party: peer.party(),
            acceptance,
            lost: Arc::clone(&lost),
            progress: TrackedProgress::Placing,
        };
        self.connections.insert(conn, connection);
        let new = NewConnection { conn, qp, negotiated, port, peer, lost };
        place.port.send(ToGroup::Adopt(Box::new(new)));
        Ok(())
    }

    /// Checks the number of connections without Connect, which may be twice the displacement limit,
    /// since displaced ones count until the connection manager has finished with them.
    fn check_nameless(&self, party: Party) -> Result<(), ConnectionRefusal> {
        let (mut all, mut of_party) = (0, 0);
        for nameless in self.connections.values().filter(|one| !one.progress.is_connected()) {
            all += 1;
            of_party += usize::from(nameless.party == party);
        }
        if of_party >= 2 * UNCONNECTED_PER_ADDRESS {
            return Err(ConnectionRefusal::Busy(of_party));
        }
        if all >= 2 * UNCONNECTED {
            return Err(ConnectionRefusal::Busy(all));
        }
        Ok(())
    }

    /// Returns the index of the group with the fewest connections.
    fn choose_group(&self) -> usize {
        let groups = (0..self.groups.len()).min_by_key(|&index| self.groups[index].connections);
        groups.expect("there is a core")
    }

    fn reject(&mut self, now: Time, conn: ConnId, peer: RemotePeer, refusal: &ConnectionRefusal) {
        if self.associations.log_rate().admit(now) {
            match refusal {
                ConnectionRefusal::Request(status) => {
                    tracing::info!(%peer, "connection rejected: {status}")
                }
                lack => tracing::warn!(%peer, "connection rejected: {lack}"),
            }
        }
        let status = refusal.status();
        self.stats.rejected += 1;
        if let Err(error) = self.cm.reject(now, conn, rejection(status).as_slice()) {
            tracing::debug!(%peer, %error, "rejecting");
            self.cm.close(conn);
        }
    }

    /// Handles the end of a connection that the connection manager reported.
    fn lost(&mut self, conn: ConnId) {
        let Some(connection) = self.connections.get(&conn) else { return };
        connection.lost.set();
        self.groups[connection.group].port.send(ToGroup::Lost(conn));
        self.unconnected.remove(&conn);
        self.step(conn, TrackedEvent::Lost);
    }

    fn handle_message(&mut self, now: Time, message: ToAcceptor) {
        let ToAcceptor { conn, update } = message;
        let Some(connection) = self.connections.get(&conn) else { return };
        if update != ConnectionUpdate::Ready {
            self.unconnected.remove(&conn);
        }
        match connection.progress.answer(update) {
            Some(GroupAnswer::Accept) => {
                let acceptance = connection.acceptance;
                if let Err(error) = self.cm.accept(now, conn, &acceptance) {
                    tracing::debug!(%error, "accepting");
                    return self.lost(conn);
                }
                self.stats.accepted += 1;
            }
            Some(GroupAnswer::Reject) => self.reject_unserved(now, conn),
            Some(GroupAnswer::Disconnect) => self.cm.disconnect(now, conn),
            None => {}
        }
        self.step(conn, TrackedEvent::Group(update));
    }

    /// Rejects a connection that its poll group cannot serve (no memory, or stopping).
    fn reject_unserved(&mut self, now: Time, conn: ConnId) {
        self.stats.rejected += 1;
        let refusal = rejection(RejectStatus::NO_RESOURCES);
        // An error means that the connection has already ended.
        let _ = self.cm.reject(now, conn, refusal.as_slice());
    }

    /// Records an event of a connection, and removes the connection when nobody needs it.
    fn step(&mut self, conn: ConnId, event: TrackedEvent) {
        let Some(connection) = self.connections.get_mut(&conn) else { return };
        match connection.progress.step(event) {
            Some(progress) => connection.progress = progress,
            None => {
                self.groups[connection.group].connections -= 1;
                self.connections.remove(&conn);
                self.cm.close(conn);
            }
        }
    }
}

/// Warns if a new device has too few completion queue entries for `limits.connections` queues.
fn warn_of_few_completions<P: Provider>(device: &impl Device<P>, groups: usize, limits: &Limits) {
    let caps = device.caps();
    let per_group = caps.max_cqe / Negotiated::most_send_entries(caps, limits);
    let queues = u64::from(per_group) * groups as u64;
    if queues < limits.connections.into() {
        tracing::warn!(
            device = caps.name,
            connections = limits.connections,
            "the device has completions for {queues} queues of queue_depth {} on {groups} cores: more are \
             refused; raise cores or lower queue_depth",
            limits.queue_depth
        );
    }
}

impl<P: Provider> Acceptor for RdmaAcceptor<P> {
    fn local_ip(&self) -> IpAddr {
        self.device.local_ip()
    }

    fn listen(&mut self, port: Arc<Port>) -> Result<SocketAddr, CmError> {
        // The address has a port number already if another device listens on the port.
        let wanted = port.address();
        let listener = self.cm.listen(wanted, &ConnOptions::default())?;
        let address = self.cm.local_addr(listener).unwrap_or(wanted);
        port.set_address(address);
        self.ports.insert(listener, port);
        Ok(address)
    }

    fn turn(&mut self, now: Time) -> bool {
        let mut progress = self.bell.answer() | self.poll_device(now);
        while let Ok(message) = self.inbox.try_recv() {
            progress = true;
            self.handle_message(now, message);
        }
        // Remaining events are handled in the next turn, which follows immediately.
        for _ in 0..EVENTS_AT_ONCE {
            let Some(event) = self.cm.poll(now) else { break };
            progress = true;
            self.handle_event(now, event);
        }
        progress
    }

    fn deadline(&self) -> Option<Time> {
        self.cm.deadline()
    }

    fn watched(&self) -> [Option<RawFd>; 3] {
        let device = if self.failure.is_noted() { None } else { self.device.async_fd() };
        let [cm, device] = [self.cm.fd(), device].map(|fd| fd.map(|fd| fd.as_raw_fd()));
        [cm, device, Some(self.bell.fd())]
    }

    fn may_sleep(&self) -> bool {
        self.bell.is_quiet()
    }

    fn close(&mut self) {
        for listener in std::mem::take(&mut self.ports).into_keys() {
            self.cm.close(listener);
        }
    }

    fn close_port(&mut self, port: &Arc<Port>) {
        let is_its = |_: &ConnId, other: &mut Arc<Port>| Arc::ptr_eq(other, port);
        for (listener, _) in self.ports.extract_if(.., is_its) {
            self.cm.close(listener);
        }
    }

    fn has_failed(&self) -> bool {
        self.failure.is_noted()
    }

    fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn stats(&self) -> AcceptorStats {
        AcceptorStats { connections: self.connections.len() as u64, ..self.stats }
    }
}

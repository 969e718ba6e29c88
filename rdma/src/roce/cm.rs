//! The connection manager of a software device.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use roce_proto::cm::{self, Manager, ServiceId, TimeoutExponent};
use roce_proto::rc::QueuePair;
use roce_proto::wire::Ecn;
use roce_proto::{PathMtu, Psn, Qpn};

use super::convert;
use super::engine::ConnectionRoute;
use super::fabric::Fabric;
use super::gsi::{Gsi, NotForUs};
use super::new_qp::NewQp;
use super::random::Random;
use super::senders::{SenderUse, Source};
use super::shared::{CmMessage, DeviceShared, GroupHandle, GroupMessage, RoceDevice};
use super::sleep::Sleep;
use super::wire::{ROCE_PORT, SenderIndex, Wire};
use crate::{
    CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectFailure, ConnectionManager,
    PrivateData, QpConfig, Time,
};

/// Default ACK timeout exponent: 0.54 s. Losses are repaired sooner; this determines how long a
/// silent peer is waited for. One more doubles that.
const ACK_TIMEOUT_EXPONENT: u8 = 17;
/// Maximum number of repetitions of a REQ or REP: about 20 s in all.
const MAX_RETRIES: u8 = 8;
/// Minimum interval between checks of the socket.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum number of batches of datagrams received in one poll.
const BATCHES: usize = 16;
/// Ports for listeners without a given port, and for the active side of connections.
const FREE_PORTS: core::ops::Range<u16> = 0x8000..0xFFFF;

/// The connection manager of a software device.
pub struct RoceCm<F: Fabric> {
    shared: Arc<DeviceShared<F>>,
    manager: Manager,
    gsi: Gsi,
    conns: BTreeMap<ConnId, ConnectionEntry>,
    by_manager: BTreeMap<cm::ConnectionId, ConnId>,
    by_listener: BTreeMap<cm::ListenerId, ConnId>,
    by_qpn: BTreeMap<u32, ConnId>,
    senders: SenderUse,
    ports: BTreeSet<u16>,
    events: VecDeque<CmEvent>,
    next_id: u64,
    random: Random,
    now: Time,
    /// Time of the next check of the socket.
    look_again: Time,
    /// `None` only during `drop`, which returns it to the device.
    wire: Option<F::Wire>,
    sleep: Option<Sleep>,
}

enum ConnectionEntry {
    Listener {
        id: cm::ListenerId,
        addr: SocketAddr,
        options: ConnOptions,
    },
    Active {
        to: SocketAddr,
        local: SocketAddr,
        options: ConnOptions,
        qp: Option<Qp>,
        id: Option<cm::ConnectionId>,
    },
    Passive {
        id: cm::ConnectionId,
        local: SocketAddr,
        peer: IpAddr,
        /// Options of the listener that the request came to.
        options: ConnOptions,
        qp: Option<Qp>,
    },
}

/// Identifies the queue pair of a connection in its group.
#[derive(Clone, Copy)]
struct Qp {
    qpn: Qpn,
    serial: u64,
    starting_psn: Psn,
    source: Source,
}

impl<F: Fabric> RoceCm<F> {
    pub(super) fn new(shared: Arc<DeviceShared<F>>, wire: F::Wire) -> io::Result<Self> {
        let ca_guid = shared.random()?.next_u64();
        let mut config = cm::ManagerConfig::new(ca_guid, shared.random()?.next_u128());
        config.sender = match shared.fabric.endpoint().port() {
            ROCE_PORT => cm::Sender::Feedrail,
            _ => cm::Sender::FeedrailAtSource,
        };
        config.max_retries = MAX_RETRIES;
        config.path_mtu =
            PathMtu::largest_within(shared.caps.max_path_mtu as usize).unwrap_or(PathMtu::Bytes256);
        let ports = shared.random()?;
        let sender = wire.sender(SenderIndex::FIRST);
        let sleep = Sleep::new(wire.receiver(), sender, shared.cm.fd())?;
        Ok(Self {
            shared,
            manager: Manager::new(config),
            gsi: Gsi::default(),
            conns: BTreeMap::new(),
            by_manager: BTreeMap::new(),
            by_listener: BTreeMap::new(),
            by_qpn: BTreeMap::new(),
            senders: SenderUse::default(),
            ports: BTreeSet::new(),
            events: VecDeque::new(),
            next_id: 0,
            random: ports,
            now: Time::ZERO,
            look_again: Time::ZERO,
            wire: Some(wire),
            sleep,
        })
    }

    fn add(&mut self, conn: ConnectionEntry) -> ConnId {
        self.next_id += 1;
        let id = ConnId(self.next_id);
        self.conns.insert(id, conn);
        id
    }

    /// Allocates a random port that no listener or connection of this device uses.
    fn free_port(&mut self) -> Result<u16, CmError> {
        let count = u64::from(FREE_PORTS.end - FREE_PORTS.start);
        for _ in 0..1024 {
            let offset = u16::try_from(self.random.below(count)).expect("fewer than 65,536");
            let port = FREE_PORTS.start + offset;
            if self.ports.insert(port) {
                return Ok(port);
            }
        }
        Err(CmError::Io(io::Error::new(io::ErrorKind::AddrInUse, "no free RDMA-CM port")))
    }

    /// Processes messages of groups, datagrams and deadlines; sends, and queues events for the
    /// caller.
    fn progress(&mut self, now: Time) {
        self.read_mail(now);
        if self.may_have_received(now) {
            self.receive(now);
        }
        self.manager.handle_deadline(now);
        self.send(now);
        while let Some(event) = self.manager.poll_event() {
            self.translate(now, event);
        }
        self.send(now);
    }

    fn read_mail(&mut self, now: Time) {
        let shared = self.shared.clone();
        shared.cm.quiet();
        while let Some(message) = shared.cm.receive() {
            match message {
                CmMessage::PeerIsReady { qpn } => self.peer_is_ready(qpn),
                CmMessage::Unreachable(peer) => self.manager.handle_unreachable(now, peer),
                CmMessage::Packet(packet) => {
                    let datagram = packet.datagram();
                    let path_to = |peer| path_to(&shared.fabric, peer);
                    let counters = &shared.counters;
                    let manager = &mut self.manager;
                    // Only packets for queue pair 1 are forwarded here.
                    let _ = self.gsi.handle(now, counters, manager, &datagram, path_to);
                }
            }
        }
    }

    /// Whether the socket is checked now. A caller that polls in a loop comes again soon, and each
    /// check costs system calls; a sleeping one is woken by the socket.
    fn may_have_received(&mut self, now: Time) -> bool {
        let due = self.sleep.is_none() || now >= self.look_again;
        if due {
            self.look_again = now + LOOK_INTERVAL;
        }
        due
    }

    fn peer_is_ready(&mut self, qpn: u32) {
        let conn = self.by_qpn.get(&qpn).and_then(|id| self.conns.get(id));
        if let Some(ConnectionEntry::Passive { id, .. }) = conn {
            self.manager.packet_arrived(*id);
        }
    }

    fn receive(&mut self, now: Time) {
        let Self { shared, manager, gsi, wire, .. } = self;
        let wire = wire.as_mut().expect("a connection manager has its wire until it is dropped");
        for _ in 0..BATCHES {
            let arrived = wire.receive(now, |datagram| {
                let path_to = |peer| path_to(&shared.fabric, peer);
                let result = gsi.handle(now, &shared.counters, manager, &datagram, path_to);
                if let Err(NotForUs { qpn }) = result {
                    shared.forward(qpn, &datagram);
                }
            });
            if !arrived.more {
                break;
            }
        }
        wire.check_sender();
        while let Some(peer) = wire.next_unreachable() {
            manager.handle_unreachable(now, peer);
        }
    }

    fn send(&mut self, now: Time) {
        let wire = self.wire.as_mut().expect("a connection manager has its wire until dropped");
        while let Some(mad) = self.manager.poll_transmit() {
            self.gsi.send(now, &self.shared.counters, wire, &mad);
        }
    }

    fn translate(&mut self, now: Time, event: cm::ManagerEvent) {
        if let cm::ManagerEvent::Request { listener, connection, request } = event {
            return self.request(now, listener, connection, request);
        }
        let Some(&conn) = self.by_manager.get(&event.connection()) else { return };
        match event {
            cm::ManagerEvent::Request { .. } => {}
            cm::ManagerEvent::Accepted { connection, agreement, private_data } => {
                self.accepted(now, conn, connection, &agreement, &private_data);
            }
            cm::ManagerEvent::Established { connection } => {
                if let Some(agreement) = self.manager.agreement(connection) {
                    let params = params_of(agreement, PrivateData::EMPTY);
                    self.events.push_back(CmEvent::Established { conn, params });
                }
            }
            cm::ManagerEvent::Rejected { reason, private_data, .. } => {
                self.fail_qp(conn);
                let passive =
                    matches!(self.conns.get(&conn), Some(ConnectionEntry::Passive { .. }));
                self.events.push_back(if passive {
                    CmEvent::ConnectFailed { conn, failure: ConnectFailure::GivenUp }
                } else {
                    let private_data = to_private(&private_data);
                    CmEvent::Rejected { conn, reason: reason.0, private_data }
                });
            }
            cm::ManagerEvent::Failed { failure, .. } => {
                self.fail_qp(conn);
                let failure = match failure_of(failure) {
                    ConnectFailure::Unreachable => self.cause_of_silence(),
                    other => other,
                };
                self.events.push_back(CmEvent::ConnectFailed { conn, failure });
            }
            cm::ManagerEvent::Disconnected { confirmed, .. } => {
                self.fail_qp(conn);
                self.events.push_back(CmEvent::Disconnected { conn, confirmed });
            }
        }
    }

    fn request(
        &mut self,
        now: Time,
        listener: cm::ListenerId,
        id: cm::ConnectionId,
        request: cm::ConnectionRequest,
    ) {
        let listener_id = self.by_listener.get(&listener).copied();
        let listener = listener_id.and_then(|id| self.conns.get(&id));
        let (Some(listener_id), Some(&ConnectionEntry::Listener { addr, options, .. })) =
            (listener_id, listener)
        else {
            return self.manager.close(now, id);
        };
        let params = ConnParams {
            responder_resources: request.responder_resources,
            initiator_depth: request.initiator_depth,
            retry_count: request.retry_count,
            rnr_retry_count: request.rnr_retry_count,
            private_data: to_private(&request.private_data),
        };
        let peer = request.addresses.as_ref().map_or(request.peer, |header| {
            SocketAddr::new(request.peer.ip(), header.source.port())
        });
        let conn = self.add(ConnectionEntry::Passive {
            id,
            local: addr,
            peer: request.peer.ip(),
            options,
            qp: None,
        });
        self.by_manager.insert(id, conn);
        self.events.push_back(CmEvent::ConnectRequest {
            listener: listener_id,
            conn,
            params,
            peer,
            process: None,
        });
    }

    /// Handles an accept on the active side. The queue pair is connected before the RTU is sent.
    fn accepted(
        &mut self,
        now: Time,
        conn: ConnId,
        id: cm::ConnectionId,
        agreement: &cm::Agreement,
        private_data: &cm::MadPrivateData,
    ) {
        let Some(ConnectionEntry::Active { qp: Some(qp), .. }) = self.conns.get(&conn) else {
            return;
        };
        self.connect_qp(*qp, agreement, false);
        if self.manager.confirm(id).is_ok() {
            self.send(now);
            let params = params_of(agreement, to_private(private_data));
            self.events.push_back(CmEvent::Established { conn, params });
        }
    }

    fn connect_qp(&self, qp: Qp, agreement: &cm::Agreement, announce: bool) {
        if let Some(mailbox) = self.shared.group_of(qp.qpn) {
            mailbox.send(GroupMessage::Connect {
                number: (qp.qpn.value(), qp.serial),
                route: ConnectionRoute {
                    peer: agreement.peer,
                    sender: qp.source.sender,
                    udp_source: agreement.peer_udp_source,
                    traffic_class: Ecn::Ect0.within(agreement.traffic_class),
                },
                announce,
                connection: Box::new(convert::connection(agreement)),
            });
        }
    }

    /// Moves the queue pair of a connection to ERROR, if it has one.
    fn fail_qp(&self, conn: ConnId) {
        let qp = self.conns.get(&conn).and_then(ConnectionEntry::qp);
        let Some(Qp { qpn, serial, .. }) = qp else { return };
        if let Some(mailbox) = self.shared.group_of(qpn) {
            mailbox.send(GroupMessage::Fail { number: (qpn.value(), serial) });
        }
    }

    /// The identifier of a connection in `roce-proto`'s manager.
    fn manager_id(&self, conn: ConnId) -> Option<cm::ConnectionId> {
        match self.conns.get(&conn)? {
            ConnectionEntry::Listener { .. } => None,
            ConnectionEntry::Active { id, .. } => *id,
            ConnectionEntry::Passive { id, .. } => Some(*id),
        }
    }
}

impl ConnectionEntry {
    fn qp(&self) -> Option<Qp> {
        match self {
            Self::Listener { .. } => None,
            Self::Active { qp, .. } | Self::Passive { qp, .. } => *qp,
        }
    }

    fn local_addr(&self) -> SocketAddr {
        match self {
            Self::Listener { addr, .. } => *addr,
            Self::Active { local, .. } | Self::Passive { local, .. } => *local,
        }
    }
}

impl<F: Fabric> ConnectionManager<F> for RoceCm<F> {
    fn listen(&mut self, addr: SocketAddr, options: &ConnOptions) -> Result<ConnId, CmError> {
        let ip = self.shared.fabric.endpoint().ip();
        if addr.ip() != ip {
            return Err(CmError::Io(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("this device serves {ip}, not {}", addr.ip()),
            )));
        }
        let port = if addr.port() == 0 { self.free_port()? } else { addr.port() };
        let id = self.manager.listen(ServiceId::tcp(port)).map_err(cm_error)?;
        self.ports.insert(port);
        let addr = SocketAddr::new(ip, port);
        let conn = self.add(ConnectionEntry::Listener { id, addr, options: *options });
        self.by_listener.insert(id, conn);
        Ok(conn)
    }

    fn resolve(
        &mut self,
        _now: Time,
        to: SocketAddr,
        _timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, CmError> {
        let ip = self.shared.fabric.endpoint().ip();
        if to.is_ipv4() != ip.is_ipv4() || to.ip().is_unspecified() || to.ip().is_multicast() {
            return Err(CmError::Io(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} cannot be reached from {ip}", to.ip()),
            )));
        }
        let reachable = self.shared.fabric.path_mtu(to.ip()).is_ok();
        let local = SocketAddr::new(ip, self.free_port()?);
        let conn =
            self.add(ConnectionEntry::Active { to, local, options: *options, qp: None, id: None });
        self.events.push_back(if reachable {
            CmEvent::Resolved { conn }
        } else {
            CmEvent::ConnectFailed { conn, failure: ConnectFailure::Route }
        });
        Ok(conn)
    }

    fn create_qp(
        &mut self,
        conn: ConnId,
        group: &GroupHandle,
        domain: &RoceDevice<F>,
        config: &QpConfig,
    ) -> Result<NewQp, CmError> {
        let (place, peer) = match self.conns.get_mut(&conn) {
            Some(ConnectionEntry::Active { qp, to, .. }) => (qp, to.ip()),
            Some(ConnectionEntry::Passive { qp, peer, .. }) => (qp, *peer),
            Some(ConnectionEntry::Listener { .. }) => return Err(CmError::WrongState),
            None => return Err(CmError::UnknownConnection),
        };
        if place.is_some() {
            return Err(CmError::WrongState);
        }
        let number = self.shared.numbers.take(group.index).ok_or_else(|| {
            CmError::Io(io::Error::other("the group has all the queue pairs that it can"))
        })?;
        let starting_psn = Psn::new(self.shared.numbers.random_psn());
        let ports = self.shared.fabric.source_ports(group.index.into(), peer);
        let source = self.senders.choose(group.index, peer, ports);
        *place = Some(Qp { qpn: number.get(), serial: number.serial(), starting_psn, source });
        self.by_qpn.insert(number.get().value(), conn);
        let queue_pair = Box::new(QueuePair::new(number.get(), &convert::to_config(config)));
        let granted = convert::from_config(&queue_pair.granted());
        Ok(NewQp { queue_pair, number, granted, domain: domain.domain() })
    }

    fn connect(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        let (to, local, options, qp) = match self.conns.get(&conn) {
            Some(&ConnectionEntry::Active { to, local, options, qp: Some(qp), id: None }) => {
                (to, local, options, qp)
            }
            Some(_) => return Err(CmError::WrongState),
            None => return Err(CmError::UnknownConnection),
        };
        let path_mtu = self.shared.fabric.path_mtu(to.ip())?;
        let request = cm::ConnectParams {
            peer: SocketAddr::new(to.ip(), ROCE_PORT),
            source: local,
            service_id: ServiceId::tcp(to.port()),
            traffic_class: options.type_of_service.unwrap_or(0),
            qpn: qp.qpn,
            starting_psn: qp.starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            retry_count: params.retry_count,
            rnr_retry_count: params.rnr_retry_count,
            ack_timeout: TimeoutExponent::saturating(
                options.ack_timeout_exponent.unwrap_or(ACK_TIMEOUT_EXPONENT),
            ),
            path_mtu: PathMtu::largest_within(path_mtu as usize).unwrap_or(PathMtu::Bytes256),
            udp_source: qp.source.port,
            private_data: params.private_data.as_slice(),
        };
        let connection = self.manager.connect(now, &request).map_err(cm_error)?;
        if let Some(ConnectionEntry::Active { id, .. }) = self.conns.get_mut(&conn) {
            *id = Some(connection);
        }
        self.by_manager.insert(connection, conn);
        self.send(now);
        Ok(())
    }

    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        let (id, options, qp) = match self.conns.get(&conn) {
            Some(&ConnectionEntry::Passive { id, options, qp: Some(qp), .. }) => (id, options, qp),
            Some(_) => return Err(CmError::WrongState),
            None => return Err(CmError::UnknownConnection),
        };
        let accept = cm::AcceptParams {
            qpn: qp.qpn,
            starting_psn: qp.starting_psn,
            responder_resources: params.responder_resources,
            initiator_depth: params.initiator_depth,
            rnr_retry_count: params.rnr_retry_count,
            udp_source: qp.source.port,
            private_data: params.private_data.as_slice(),
        };
        let mut agreement = self.manager.accept(now, id, &accept).map_err(cm_error)?;
        if let Some(type_of_service) = options.type_of_service {
            agreement.traffic_class = type_of_service;
        }
        if let Some(exponent) = options.ack_timeout_exponent {
            agreement.ack_timeout = TimeoutExponent::saturating(exponent);
        }
        // Connects the queue pair before the peer learns of the accept, so before the first packet.
        self.connect_qp(qp, &agreement, true);
        self.send(now);
        Ok(())
    }

    fn reject(&mut self, now: Time, conn: ConnId, private: &[u8]) -> Result<(), CmError> {
        let Some(ConnectionEntry::Passive { id, .. }) = self.conns.get(&conn) else {
            return Err(CmError::UnknownConnection);
        };
        self.manager.reject(now, *id, private).map_err(cm_error)?;
        self.send(now);
        self.close(conn);
        Ok(())
    }

    fn disconnect(&mut self, now: Time, conn: ConnId) {
        self.fail_qp(conn);
        if let Some(id) = self.manager_id(conn) {
            self.manager.disconnect(now, id);
            self.send(now);
        }
    }

    fn close(&mut self, conn: ConnId) {
        let id = self.manager_id(conn);
        let Some(closed) = self.conns.remove(&conn) else { return };
        if let ConnectionEntry::Listener { id, .. } = closed {
            self.manager.unlisten(id);
            self.by_listener.remove(&id);
        }
        if let Some(qp) = closed.qp() {
            self.by_qpn.remove(&qp.qpn.value());
            self.senders.leave(&qp.source);
        }
        if !matches!(closed, ConnectionEntry::Passive { .. }) {
            self.ports.remove(&closed.local_addr().port());
        }
        if let Some(id) = id {
            self.by_manager.remove(&id);
            self.manager.close(self.now, id);
            self.send(self.now);
        }
        self.events.retain(|event| conn_of(event) != Some(conn));
    }

    fn poll(&mut self, now: Time) -> Option<CmEvent> {
        self.now = self.now.max(now);
        if self.events.is_empty() {
            self.progress(now);
        }
        self.events.pop_front()
    }

    fn cause_of_silence(&self) -> ConnectFailure {
        let endpoint = self.shared.fabric.endpoint();
        match endpoint.port() {
            ROCE_PORT => ConnectFailure::Unreachable,
            _ => ConnectFailure::PortTaken(endpoint.ip()),
        }
    }

    fn deadline(&self) -> Option<Time> {
        if !self.events.is_empty() || !self.shared.cm.is_empty() {
            return Some(self.now);
        }
        let held_back = self.wire.as_ref().and_then(Wire::deadline);
        self.manager.deadline().into_iter().chain(held_back).min()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.sleep.as_ref().map(Sleep::fd)
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.conns.get(&conn).map(ConnectionEntry::local_addr)
    }
}

impl<F: Fabric> Drop for RoceCm<F> {
    fn drop(&mut self) {
        if let Some(wire) = self.wire.take() {
            self.shared.fabric.give_back(0, wire);
        }
    }
}

/// The largest path MTU to `peer`; 256 bytes if there is no route.
fn path_to<F: Fabric>(fabric: &F, peer: IpAddr) -> Option<PathMtu> {
    let bytes = fabric.path_mtu(peer).unwrap_or(0);
    Some(PathMtu::largest_within(bytes as usize).unwrap_or(PathMtu::Bytes256))
}

fn params_of(agreement: &cm::Agreement, private_data: PrivateData) -> ConnParams {
    ConnParams {
        responder_resources: agreement.responder_resources,
        initiator_depth: agreement.initiator_depth,
        retry_count: agreement.retry_count,
        rnr_retry_count: agreement.rnr_retry_count,
        private_data,
    }
}

fn to_private(data: &cm::MadPrivateData) -> PrivateData {
    let bytes = data.get(..data.len().min(PrivateData::MAX)).unwrap_or(&[]);
    PrivateData::new(bytes).unwrap_or_default()
}

fn failure_of(failure: cm::ConnectionFailure) -> ConnectFailure {
    match failure {
        cm::ConnectionFailure::Unreachable => ConnectFailure::Refused,
        cm::ConnectionFailure::Stale | cm::ConnectionFailure::InvalidReply => ConnectFailure::Stale,
        _ => ConnectFailure::Unreachable,
    }
}

fn cm_error(error: cm::Error) -> CmError {
    match error {
        cm::Error::UnknownConnection => CmError::UnknownConnection,
        cm::Error::WrongState => CmError::WrongState,
        cm::Error::PrivateDataTooLong => CmError::PrivateDataTooLong,
        cm::Error::ServiceInUse => CmError::Io(io::ErrorKind::AddrInUse.into()),
        other => CmError::Io(io::Error::other(other.to_string())),
    }
}

fn conn_of(event: &CmEvent) -> Option<ConnId> {
    match *event {
        CmEvent::ConnectRequest { conn, .. }
        | CmEvent::Resolved { conn }
        | CmEvent::Established { conn, .. }
        | CmEvent::Rejected { conn, .. }
        | CmEvent::ConnectFailed { conn, .. }
        | CmEvent::Disconnected { conn, .. }
        | CmEvent::DeviceRemoved { conn } => Some(conn),
    }
}

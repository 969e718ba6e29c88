//! The connection manager of a shared-memory device.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::agreement::{ACK_TIMEOUT_EXPONENT, LinkAgreement, MAX_DEPTH};
use super::group::{ShmGroupHandle, ShmNewQp};
use super::link::{LinkOffer, ShmLink};
use super::message::{CmMessageKind, ShmCmMessage};
use super::queue_pair::ShmQueuePair;
use super::shared::{Shm, ShmDevice, ShmDeviceShared, ShmGroupMessage};
use super::socket::{self, Incoming};
use super::work_limits::WorkLimits;
use crate::local_peer::LocalPeer;
use crate::software::random::{Entropy, Random, SystemEntropy};
use crate::{
    CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectFailure, ConnectionManager,
    PrivateData, QpConfig, REJECT_CONSUMER_DEFINED, Time,
};

/// How long a peer may take to answer a request or an accept; the same as for `soft`.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a peer may take from connecting its socket to sending its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a peer may take to answer a disconnect.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long connecting to a listener with a full backlog is retried. The listener may belong to
/// another user, since its credentials are known only once connected.
const RETRY_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between attempts to connect to a listener with a full backlog.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(1);
/// How long a listener stops accepting after an error, for instance for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// Minimum interval between checks of the sockets, each a system call.
const LOOK_INTERVAL: Duration = Duration::from_micros(50);
/// Maximum private data of a request and a reject in bytes, as on other providers.
const REQUEST_PRIVATE_BYTES: usize = 56;
const REJECT_PRIVATE_BYTES: usize = 148;
/// Ports for listeners without a given port, and for the active side of connections.
const FREE_PORTS: core::ops::Range<u16> = 0x8000..0xFFFF;
/// Maximum number of accepted sockets without a request; beyond it the oldest is closed.
const MAX_SILENT: usize = 256;
/// Maximum number of sockets accepted in one poll; a listener with more stays readable.
const MAX_ACCEPTED: usize = 64;
const EVENTS: usize = 64;

/// The connection manager of a shared-memory device.
pub struct ShmCm {
    shared: Arc<ShmDeviceShared>,
    sockets: BTreeMap<ConnId, ShmEndpoint>,
    events: VecDeque<CmEvent>,
    next_id: u64,
    random: Random,
    sleep: OwnedFd,
    now: Time,
    look_again: Time,
    /// Earliest deadline of any endpoint, or earlier.
    soonest: Option<Time>,
    /// Number of accepted sockets that have not sent their request.
    silent: usize,
}

/// A listener or a connection, with its socket.
enum ShmEndpoint {
    Listener {
        socket: OwnedFd,
        local: SocketAddr,
        options: ConnOptions,
        /// Time until which nothing is accepted after an error.
        pauses: Option<Time>,
    },
    /// An accepted socket that has not sent its request.
    Silent {
        socket: OwnedFd,
        listener: ConnId,
        deadline: Time,
    },
    Connection(Box<ShmConnection>),
}

struct ShmConnection {
    local: SocketAddr,
    peer: SocketAddr,
    options: ConnOptions,
    qp: Option<QpName>,
    socket: Option<OwnedFd>,
    /// The parameters that we requested or that were agreed on, seen from our side.
    params: ConnParams,
    ack_timeout_exponent: u8,
    stage: ConnStage,
    deadline: Option<Time>,
}

enum ConnStage {
    /// Active side: `connect` was not called yet. The offer is set by `create_qp`.
    Resolved(Option<LinkOffer>),
    /// Active side: the listener's backlog was full; connecting is retried until `until`.
    RetryingConnect {
        offer: LinkOffer,
        until: Time,
    },
    /// Active side: the request was sent.
    Asked,
    /// Passive side: a request came; the link is taken by `create_qp`.
    Requested(Option<ShmLink>),
    /// Passive side: accepted, waiting for the peer's ready message.
    Accepted,
    Established,
    /// We sent a disconnect and wait for the answer.
    Ending {
        /// Whether the peer may have sent its ready message before it received the disconnect.
        ready_may_come: bool,
    },
    Over,
}

/// Identifies the queue pair of a connection in its group.
#[derive(Clone, Copy)]
struct QpName {
    group: u8,
    number: (u32, u64),
}

impl ShmCm {
    pub(super) fn new(shared: Arc<ShmDeviceShared>) -> io::Result<Self> {
        Ok(Self {
            shared,
            sockets: BTreeMap::new(),
            events: VecDeque::new(),
            next_id: 0,
            random: SystemEntropy.stream()?,
            sleep: epoll::create(CreateFlags::CLOEXEC)?,
            now: Time::ZERO,
            look_again: Time::ZERO,
            soonest: None,
            silent: 0,
        })
    }

    fn next_id(&mut self) -> ConnId {
        self.next_id += 1;
        ConnId(self.next_id)
    }

    fn random_port(&mut self) -> u16 {
        let count = u64::from(FREE_PORTS.end - FREE_PORTS.start);
        FREE_PORTS.start + u16::try_from(self.random.below(count)).expect("fewer than 65,536")
    }

    /// Adds a socket to the epoll set.
    fn watch(&self, id: ConnId, socket: &OwnedFd) -> io::Result<()> {
        Ok(epoll::add(&self.sleep, socket, EventData::new_u64(id.0), EventFlags::IN)?)
    }

    fn connection(&mut self, conn: ConnId) -> Result<&mut ShmConnection, CmError> {
        match self.sockets.get_mut(&conn) {
            Some(ShmEndpoint::Connection(connection)) => Ok(connection),
            Some(ShmEndpoint::Listener { .. }) => Err(CmError::WrongState),
            Some(ShmEndpoint::Silent { .. }) | None => Err(CmError::UnknownConnection),
        }
    }

    /// Processes socket events, at most once per `LOOK_INTERVAL`, and expired deadlines.
    fn progress(&mut self, now: Time) {
        if now >= self.look_again {
            self.look_again = now + LOOK_INTERVAL;
            let mut events =
                [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
            let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
            let count = epoll::wait(&self.sleep, &mut events, Some(&at_once)).unwrap_or(0);
            for event in &events[..count] {
                self.look_at(now, ConnId(event.data.u64()));
            }
        }
        if self.soonest.is_some_and(|deadline| deadline <= now) {
            let due = |endpoint: &ShmEndpoint| endpoint.deadline().is_some_and(|time| time <= now);
            let ids: Vec<_> =
                self.sockets.iter().filter(|(_, e)| due(e)).map(|(&id, _)| id).collect();
            ids.into_iter().for_each(|id| self.expire(now, id));
            self.soonest = self.sockets.values().filter_map(ShmEndpoint::deadline).min();
        }
    }

    /// Records a deadline of an endpoint.
    fn note_deadline(&mut self, time: Time) {
        self.soonest = Some(self.soonest.map_or(time, |soonest| soonest.min(time)));
    }

    /// Processes a readable socket.
    fn look_at(&mut self, now: Time, id: ConnId) {
        match self.sockets.get(&id) {
            Some(ShmEndpoint::Listener { .. }) => self.accept_peers(now, id),
            Some(ShmEndpoint::Silent { .. }) => self.hear_request(id),
            Some(ShmEndpoint::Connection(_)) => self.hear(id),
            None => {}
        }
    }

    fn accept_peers(&mut self, now: Time, id: ConnId) {
        for _ in 0..MAX_ACCEPTED {
            let Some(ShmEndpoint::Listener { socket: listener, .. }) = self.sockets.get(&id) else {
                return;
            };
            let socket = match socket::accept(listener.as_fd(), self.shared.trust) {
                Ok(Some(socket)) => socket,
                Ok(None) => continue,
                Err(error) => {
                    if error.kind() != io::ErrorKind::WouldBlock {
                        tracing::warn!(%error, "cannot accept a connection to shared memory");
                        self.pause(now, id);
                    }
                    return;
                }
            };
            if self.silent >= MAX_SILENT {
                self.drop_oldest_silent();
            }
            let conn = self.next_id();
            if let Err(error) = self.watch(conn, &socket) {
                tracing::warn!(%error, "cannot wait for a connection to shared memory");
                continue;
            }
            self.silent += 1;
            let deadline = now + REQUEST_TIMEOUT;
            self.note_deadline(deadline);
            self.sockets.insert(conn, ShmEndpoint::Silent { socket, listener: id, deadline });
            self.hear_request(conn);
        }
    }

    /// Removes a listener from the epoll set for `ACCEPT_PAUSE`, since it would stay readable.
    fn pause(&mut self, now: Time, id: ConnId) {
        let Some(ShmEndpoint::Listener { socket, pauses, .. }) = self.sockets.get_mut(&id) else {
            return;
        };
        if epoll::delete(&self.sleep, &*socket).is_ok() {
            *pauses = Some(now + ACCEPT_PAUSE);
            self.note_deadline(now + ACCEPT_PAUSE);
        }
    }

    /// Adds a paused listener to the epoll set again.
    fn resume(&mut self, now: Time, id: ConnId) {
        let Some(ShmEndpoint::Listener { socket, pauses, .. }) = self.sockets.get_mut(&id) else {
            return;
        };
        let data = EventData::new_u64(id.0);
        *pauses = match epoll::add(&self.sleep, &*socket, data, EventFlags::IN) {
            Ok(()) => None,
            Err(_) => Some(now + ACCEPT_PAUSE),
        };
    }

    fn drop_oldest_silent(&mut self) {
        let silent = |endpoint: &ShmEndpoint| matches!(endpoint, ShmEndpoint::Silent { .. });
        let oldest = self.sockets.iter().find(|(_, endpoint)| silent(endpoint));
        if let Some((&id, _)) = oldest {
            self.sockets.remove(&id);
            self.silent -= 1;
        }
    }

    /// Turns an accepted socket into a connection once its request has come.
    fn hear_request(&mut self, conn: ConnId) {
        let Some(ShmEndpoint::Silent { socket, .. }) = self.sockets.get(&conn) else { return };
        let request = match socket::receive_request(socket.as_fd()) {
            Incoming::Nothing => return,
            Incoming::Message((message, offer)) if message.kind == CmMessageKind::Request => {
                ShmLink::accept(offer).map(|link| (message, link))
            }
            // The peer closed without a request: it was a probe for a listener.
            Incoming::End => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it sent no request")),
        };
        let Some(ShmEndpoint::Silent { socket, listener, .. }) = self.sockets.remove(&conn) else {
            return;
        };
        self.silent -= 1;
        match request {
            Ok((message, link)) => self.request(conn, listener, socket, &message, link),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            Err(error) => tracing::warn!(%error, "a connection to shared memory was refused"),
        }
    }

    fn request(
        &mut self,
        conn: ConnId,
        listener: ConnId,
        socket: OwnedFd,
        message: &ShmCmMessage,
        link: ShmLink,
    ) {
        let Some(&ShmEndpoint::Listener { local, options, .. }) = self.sockets.get(&listener)
        else {
            return;
        };
        // The credentials were checked on accept; here they are read for the event.
        let Ok(process) = LocalPeer::of(socket.as_fd()).map(Some) else { return };
        // All processes of this machine share its addresses, so an address that the peer names
        // would have no meaning: the listener's is reported.
        let peer = SocketAddr::new(local.ip(), message.number);
        let params = turned_round(&message.params);
        let connection = ShmConnection {
            local,
            peer,
            options,
            qp: None,
            socket: Some(socket),
            params,
            ack_timeout_exponent: message.ack_timeout_exponent,
            stage: ConnStage::Requested(Some(link)),
            deadline: None,
        };
        self.sockets.insert(conn, ShmEndpoint::Connection(Box::new(connection)));
        self.events.push_back(CmEvent::ConnectRequest { listener, conn, params, peer, process });
    }

    /// Receives and handles the messages of a connection.
    fn hear(&mut self, conn: ConnId) {
        loop {
            let Ok(connection) = self.connection(conn) else { return };
            let Some(socket) = &connection.socket else { return };
            match socket::receive(socket.as_fd()) {
                Incoming::Nothing => return,
                Incoming::Message(message) => self.handle(conn, &message),
                Incoming::End | Incoming::Nonsense => {
                    self.connection(conn).ok().and_then(|connection| connection.socket.take());
                    return self.lose(conn);
                }
            }
        }
    }

    fn handle(&mut self, conn: ConnId, message: &ShmCmMessage) {
        let Ok(connection) = self.connection(conn) else { return };
        match (message.kind, &connection.stage) {
            (CmMessageKind::Accept, ConnStage::Asked) => self.accepted(conn, message),
            (CmMessageKind::Reject, ConnStage::Asked) => {
                self.end(conn);
                let private_data = message.params.private_data;
                let reason = message.number;
                self.events.push_back(CmEvent::Rejected { conn, reason, private_data });
            }
            (CmMessageKind::Ready, ConnStage::Accepted) => {
                (connection.stage, connection.deadline) = (ConnStage::Established, None);
                let params = ConnParams { private_data: PrivateData::EMPTY, ..connection.params };
                self.events.push_back(CmEvent::Established { conn, params });
            }
            (CmMessageKind::Ready, ConnStage::Ending { ready_may_come: true }) => {
                connection.stage = ConnStage::Ending { ready_may_come: false };
            }
            (CmMessageKind::Disconnect, ConnStage::Accepted | ConnStage::Established) => {
                connection.send(CmMessageKind::Disconnected);
                self.lose(conn);
            }
            // Both ends disconnected at the same time, or the peer answers.
            (CmMessageKind::Disconnect | CmMessageKind::Disconnected, ConnStage::Ending { .. }) => {
                self.lose(conn);
            }
            (_, ConnStage::Over) => {}
            (kind, _) => {
                tracing::warn!(?kind, "a peer in shared memory broke the protocol");
                connection.socket = None;
                self.lose(conn);
            }
        }
    }

    /// Handles an accept on the active side. The queue pair is connected before the ready message
    /// is sent.
    fn accepted(&mut self, conn: ConnId, message: &ShmCmMessage) {
        let Ok(connection) = self.connection(conn) else { return };
        let granted = turned_round(&message.params);
        let asked = &connection.params;
        connection.params = ConnParams {
            responder_resources: granted.responder_resources.min(asked.responder_resources),
            initiator_depth: granted.initiator_depth.min(asked.initiator_depth),
            retry_count: asked.retry_count,
            rnr_retry_count: granted.rnr_retry_count,
            private_data: granted.private_data,
        };
        (connection.stage, connection.deadline) = (ConnStage::Established, None);
        let params = connection.params;
        self.connect_qp(conn);
        if let Ok(connection) = self.connection(conn) {
            connection.send(CmMessageKind::Ready);
        }
        self.events.push_back(CmEvent::Established { conn, params });
    }

    fn connect_qp(&mut self, conn: ConnId) {
        let Ok(connection) = self.connection(conn) else { return };
        let Some(QpName { group, number }) = connection.qp else { return };
        let agreement = LinkAgreement::new(&connection.params, connection.ack_timeout_exponent);
        if let Some(mailbox) = self.shared.mailbox(group) {
            mailbox.send(ShmGroupMessage::Connect { number, agreement });
        }
    }

    /// Moves the queue pair of a connection to ERROR, if it has one.
    fn fail_qp(&mut self, conn: ConnId) {
        let Ok(connection) = self.connection(conn) else { return };
        let Some(QpName { group, number }) = connection.qp else { return };
        if let Some(mailbox) = self.shared.mailbox(group) {
            mailbox.send(ShmGroupMessage::Fail { number });
        }
    }

    /// Ends a connection. Its socket is closed, or the peer could keep us busy with messages.
    fn end(&mut self, conn: ConnId) {
        self.fail_qp(conn);
        if let Ok(connection) = self.connection(conn) {
            (connection.stage, connection.deadline) = (ConnStage::Over, None);
            connection.socket = None;
        }
    }

    /// Ends a connection that the peer has closed, and reports it.
    fn lose(&mut self, conn: ConnId) {
        let Ok(connection) = self.connection(conn) else { return };
        let event = match connection.stage {
            ConnStage::Over | ConnStage::Resolved(_) | ConnStage::RetryingConnect { .. } => return,
            ConnStage::Asked | ConnStage::Requested(_) | ConnStage::Accepted => {
                CmEvent::ConnectFailed { conn, failure: ConnectFailure::GivenUp }
            }
            ConnStage::Established | ConnStage::Ending { .. } => {
                CmEvent::Disconnected { conn, confirmed: true }
            }
        };
        self.end(conn);
        self.events.push_back(event);
    }

    /// Handles an expired deadline.
    fn expire(&mut self, now: Time, id: ConnId) {
        if matches!(self.sockets.get(&id), Some(ShmEndpoint::Silent { .. })) {
            self.sockets.remove(&id);
            self.silent -= 1;
            return;
        }
        let Ok(connection) = self.connection(id) else { return self.resume(now, id) };
        let event = match connection.stage {
            ConnStage::RetryingConnect { until, .. } if now < until => {
                return self.retry_connect(now, id);
            }
            ConnStage::Ending { .. } => CmEvent::Disconnected { conn: id, confirmed: false },
            ConnStage::Accepted => {
                CmEvent::ConnectFailed { conn: id, failure: ConnectFailure::GivenUp }
            }
            _ => CmEvent::ConnectFailed { conn: id, failure: ConnectFailure::Unreachable },
        };
        self.end(id);
        self.events.push_back(event);
    }

    /// Connects to the listener and sends the request, or schedules the next attempt.
    fn retry_connect(&mut self, now: Time, conn: ConnId) {
        let trust = self.shared.trust;
        let Ok(connection) = self.connection(conn) else { return };
        let ConnStage::RetryingConnect { offer, .. } = &connection.stage else { return };
        let message = ShmCmMessage {
            kind: CmMessageKind::Request,
            params: connection.params,
            ack_timeout_exponent: connection.ack_timeout_exponent,
            number: connection.local.port(),
        };
        let asked = socket::connect(connection.peer, trust)
            .and_then(|socket| {
                socket::send_request(socket.as_fd(), &message, offer)?;
                Ok(socket)
            })
            .and_then(|socket| {
                self.watch(conn, &socket)?;
                Ok(socket)
            });
        let Ok(connection) = self.connection(conn) else { return };
        match asked {
            Ok(socket) => {
                connection.socket = Some(socket);
                connection.stage = ConnStage::Asked;
                connection.deadline = Some(now + ANSWER_TIMEOUT);
                self.note_deadline(now + ANSWER_TIMEOUT);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                connection.deadline = Some(now + ASK_AGAIN_AFTER);
                self.note_deadline(now + ASK_AGAIN_AFTER);
            }
            Err(error) => {
                let peer = connection.peer;
                tracing::debug!(%error, %peer, "cannot connect to shared memory");
                let failure = match error.kind() {
                    io::ErrorKind::ConnectionRefused => ConnectFailure::NotShared,
                    io::ErrorKind::PermissionDenied => ConnectFailure::Untrusted,
                    _ => ConnectFailure::Unreachable,
                };
                self.end(conn);
                self.events.push_back(CmEvent::ConnectFailed { conn, failure });
            }
        }
    }
}

impl ShmEndpoint {
    fn deadline(&self) -> Option<Time> {
        match self {
            Self::Listener { pauses, .. } => *pauses,
            Self::Silent { deadline, .. } => Some(*deadline),
            Self::Connection(connection) => connection.deadline,
        }
    }
}

impl ShmConnection {
    /// Sends a message without parameters. An error is only logged: a peer that does not read is
    /// detected by its deadline.
    fn send(&self, kind: CmMessageKind) {
        let message = ShmCmMessage::plain(kind);
        if let Some(socket) = &self.socket
            && let Err(error) = socket::send(socket.as_fd(), &message)
        {
            tracing::debug!(%error, ?kind, "a peer in shared memory takes no message");
        }
    }
}

impl ConnectionManager<Shm> for ShmCm {
    fn listen(&mut self, addr: SocketAddr, options: &ConnOptions) -> Result<ConnId, CmError> {
        let ip = self.shared.address;
        if addr.ip() != ip {
            return Err(CmError::Io(io::Error::new(
                io::ErrorKind::AddrNotAvailable,
                format!("this device serves {ip}, not {}", addr.ip()),
            )));
        }
        let (local, socket) = match addr.port() {
            0 => self.listen_anywhere()?,
            port => {
                let local = SocketAddr::new(ip, port);
                (local, socket::listen(local)?)
            }
        };
        let id = self.next_id();
        self.watch(id, &socket)?;
        self.sockets
            .insert(id, ShmEndpoint::Listener { socket, local, options: *options, pauses: None });
        Ok(id)
    }

    fn resolve(
        &mut self,
        _now: Time,
        to: SocketAddr,
        _timeout: Duration,
        options: &ConnOptions,
    ) -> Result<ConnId, CmError> {
        if to.ip().is_unspecified() || to.ip().is_multicast() {
            return Err(CmError::Io(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} is no address of a peer", to.ip()),
            )));
        }
        let local = SocketAddr::new(self.shared.address, self.random_port());
        let exponent = options.ack_timeout_exponent.unwrap_or(ACK_TIMEOUT_EXPONENT);
        let connection = ShmConnection {
            local,
            peer: to,
            options: *options,
            qp: None,
            socket: None,
            params: ConnParams::default(),
            ack_timeout_exponent: exponent,
            stage: ConnStage::Resolved(None),
            deadline: None,
        };
        let conn = self.next_id();
        self.sockets.insert(conn, ShmEndpoint::Connection(Box::new(connection)));
        self.events.push_back(CmEvent::Resolved { conn });
        Ok(conn)
    }

    fn create_qp(
        &mut self,
        conn: ConnId,
        group: &ShmGroupHandle,
        domain: &ShmDevice,
        config: &QpConfig,
    ) -> Result<ShmNewQp, CmError> {
        let numbers = Arc::clone(&self.shared.numbers);
        let connection = self.connection(conn)?;
        if connection.qp.is_some() {
            return Err(CmError::WrongState);
        }
        let number = numbers.take(group.index).ok_or_else(|| {
            CmError::Io(io::Error::other("the group has all the queue pairs that it can"))
        })?;
        let link = match &mut connection.stage {
            ConnStage::Resolved(place) => {
                let (link, offer) = ShmLink::create()?;
                *place = Some(offer);
                link
            }
            ConnStage::Requested(link) => link.take().ok_or(CmError::WrongState)?,
            ConnStage::Over => return Err(CmError::UnknownConnection),
            _ => return Err(CmError::WrongState),
        };
        let name = (number.get().value(), number.serial());
        connection.qp = Some(QpName { group: group.index, number: name });
        let limits = WorkLimits::granted(config);
        Ok(ShmNewQp(Box::new(ShmQueuePair::new(number, limits, domain.domain(), link))))
    }

    fn connect(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        self.now = self.now.max(now);
        let connection = self.connection(conn)?;
        if params.private_data.as_slice().len() > REQUEST_PRIVATE_BYTES {
            return Err(CmError::PrivateDataTooLong);
        }
        let ConnStage::Resolved(offer) = &mut connection.stage else {
            return Err(CmError::WrongState);
        };
        let offer = offer.take().ok_or(CmError::WrongState)?;
        connection.params = *params;
        connection.stage = ConnStage::RetryingConnect { offer, until: now + RETRY_CONNECT_TIMEOUT };
        self.retry_connect(now, conn);
        Ok(())
    }

    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        self.now = self.now.max(now);
        let connection = self.connection(conn)?;
        match connection.stage {
            ConnStage::Requested(None) => {}
            ConnStage::Over => return Err(CmError::UnknownConnection),
            _ => return Err(CmError::WrongState),
        }
        let asked = connection.params;
        let granted = ConnParams {
            responder_resources: params.responder_resources.min(asked.responder_resources),
            initiator_depth: params.initiator_depth.min(asked.initiator_depth),
            retry_count: asked.retry_count,
            rnr_retry_count: asked.rnr_retry_count,
            private_data: PrivateData::EMPTY,
        };
        connection.params = granted;
        if let Some(exponent) = connection.options.ack_timeout_exponent {
            connection.ack_timeout_exponent = exponent;
        }
        connection.stage = ConnStage::Accepted;
        connection.deadline = Some(now + ANSWER_TIMEOUT);
        let answer = ConnParams {
            rnr_retry_count: params.rnr_retry_count,
            private_data: params.private_data,
            ..granted
        };
        self.note_deadline(now + ANSWER_TIMEOUT);
        // Connects the queue pair before the peer learns of the accept, so before the first record.
        self.connect_qp(conn);
        let connection = self.connection(conn)?;
        let message = ShmCmMessage { params: answer, ..ShmCmMessage::plain(CmMessageKind::Accept) };
        let sent = connection.socket.as_ref().map(|socket| socket::send(socket.as_fd(), &message));
        if !matches!(sent, Some(Ok(()))) {
            connection.socket = None;
            self.lose(conn);
        }
        Ok(())
    }

    fn reject(&mut self, _now: Time, conn: ConnId, private: &[u8]) -> Result<(), CmError> {
        let connection = self.connection(conn)?;
        if !matches!(connection.stage, ConnStage::Requested(_)) {
            return Err(CmError::WrongState);
        }
        let private_data = PrivateData::new(private)
            .filter(|_| private.len() <= REJECT_PRIVATE_BYTES)
            .ok_or(CmError::PrivateDataTooLong)?;
        let message = ShmCmMessage {
            params: ConnParams { private_data, ..ConnParams::default() },
            number: REJECT_CONSUMER_DEFINED,
            ..ShmCmMessage::plain(CmMessageKind::Reject)
        };
        if let Some(socket) = &connection.socket
            && let Err(error) = socket::send(socket.as_fd(), &message)
        {
            tracing::debug!(%error, "a peer in shared memory takes no reject");
        }
        self.close(conn);
        Ok(())
    }

    fn disconnect(&mut self, now: Time, conn: ConnId) {
        self.now = self.now.max(now);
        self.fail_qp(conn);
        let Ok(connection) = self.connection(conn) else { return };
        match connection.stage {
            ConnStage::Accepted | ConnStage::Established => {
                connection.send(CmMessageKind::Disconnect);
                let ready_may_come = matches!(connection.stage, ConnStage::Accepted);
                connection.stage = ConnStage::Ending { ready_may_come };
                connection.deadline = Some(now + CLOSE_TIMEOUT);
                self.note_deadline(now + CLOSE_TIMEOUT);
            }
            ConnStage::Ending { .. } | ConnStage::Over => {}
            // The peer learns of it when the socket is closed.
            _ => {
                connection.socket = None;
                self.end(conn);
                self.events.push_back(CmEvent::Disconnected { conn, confirmed: false });
            }
        }
    }

    fn close(&mut self, conn: ConnId) {
        self.fail_qp(conn);
        self.sockets.remove(&conn);
        self.events.retain(|event| conn_of(event) != Some(conn));
    }

    fn poll(&mut self, now: Time) -> Option<CmEvent> {
        self.now = self.now.max(now);
        if self.events.is_empty() {
            self.progress(now);
        }
        self.events.pop_front()
    }

    fn deadline(&self) -> Option<Time> {
        if !self.events.is_empty() {
            return Some(self.now);
        }
        self.soonest
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.sleep.as_fd())
    }

    fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        match self.sockets.get(&conn)? {
            ShmEndpoint::Listener { local, .. } => Some(*local),
            ShmEndpoint::Connection(connection) => Some(connection.local),
            ShmEndpoint::Silent { .. } => None,
        }
    }
}

impl ShmCm {
    /// Listens on a random free port.
    fn listen_anywhere(&mut self) -> Result<(SocketAddr, OwnedFd), CmError> {
        for _ in 0..1024 {
            let local = SocketAddr::new(self.shared.address, self.random_port());
            match socket::listen(local) {
                Ok(socket) => return Ok((local, socket)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(CmError::Io(io::Error::new(io::ErrorKind::AddrInUse, "no free port")))
    }
}

impl Drop for ShmCm {
    fn drop(&mut self) {
        self.shared.cm_in_use.store(false, Ordering::Release);
    }
}

/// The peer's parameters seen from our side, limited to the maximum depth.
fn turned_round(params: &ConnParams) -> ConnParams {
    ConnParams {
        responder_resources: params.initiator_depth.min(MAX_DEPTH),
        initiator_depth: params.responder_resources.min(MAX_DEPTH),
        ..*params
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

//! The manager: the functions by which a caller establishes and closes connections.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::{IpAddr, SocketAddr};

use super::caller::{Caller, CallerEvent};
use super::comm_ids::CommIds;
use super::connection::{self, ConnectionState, Contact, ManagedConnection, Resend, Side};
use super::private_data::padded;
use super::table::ConnectionTable;
use super::time_wait::TimeWait;
use super::unsolicited::Unsolicited;
use super::{
    AcceptParams, Agreement, CommId, ConnectParams, ConnectionFailure, ConnectionId, Error,
    ListenerId, Mad, ManagerConfig, ManagerEvent, RejectReason, RejectedMessage, ServiceId,
};
use crate::Time;

/// All connections of one endpoint, active and passive.
///
/// The caller passes each received datagram to [`Manager::handle_datagram`] and calls the commands
/// as needed. After each call, it calls `poll_event` and `poll_transmit` until they return `None`,
/// and it calls `handle_deadline` when `deadline` has passed.
///
/// ```text
/// active:   connect ──► Accepted ── connect the queue pair ──► confirm
/// passive:  Request ──► accept ── connect the queue pair, then poll_transmit ──► Established
/// both:     disconnect ──► Disconnected, or Disconnected by the peer's wish; at the end close
/// ```
///
/// A duplicate message is answered as the first one was. A peer can affect only its own
/// connections: messages for a connection are accepted only from the connection's peer.
/// [`super::ManagerLimits`] bounds the memory.
///
/// A peer that has not proved that it receives ours gets one datagram per datagram from it, since
/// its address may be forged. Exceptions (a repeated REP, a connection that is withdrawn after the
/// REP) are limited by [`super::ManagerLimits::unsolicited_per_second`] for all such peers
/// together.
#[derive(Debug)]
pub struct Manager {
    pub(super) config: ManagerConfig,
    pub(super) comm_ids: CommIds,
    pub(super) listeners: BTreeMap<ServiceId, ListenerId>,
    next_listener: u64,
    pub(super) table: ConnectionTable,
    pub(super) time_wait: TimeWait,
    unsolicited: Unsolicited,
    outgoing: VecDeque<MadTransmit>,
    events: VecDeque<ManagerEvent>,
    pub(super) counters: ManagerCounters,
}

/// A datagram to send to queue pair 1 of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MadTransmit {
    /// Endpoint of the peer: IP address and UDP port.
    pub peer: SocketAddr,
    /// Traffic class of the packet. Messages of a connection have the traffic class of its path, as
    /// with Linux, where both use the address handle of the path. Answers that belong to no
    /// connection have 0.
    pub traffic_class: u8,
    /// The payload of the UD packet.
    pub mad: Mad,
}

/// Counters of a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagerCounters {
    /// Datagrams received from peers.
    pub received: u64,
    /// Received datagrams that are not a supported message.
    pub malformed: u64,
    /// Received messages for a connection that does not exist with the sender.
    pub unknown_connection: u64,
    /// Received messages that were duplicates.
    pub duplicates: u64,
    /// Datagrams sent, repetitions included.
    pub sent: u64,
    /// Messages repeated after a timeout.
    pub retries: u64,
    /// Datagrams not sent because the queue was full.
    pub dropped: u64,
    /// REQs rejected without an event for the caller.
    pub refused: u64,
    /// Half-open connections evicted for newer requests.
    pub evicted: u64,
}

impl Manager {
    /// Creates a manager without connections.
    pub fn new(config: ManagerConfig) -> Self {
        Self {
            comm_ids: CommIds::new(config.comm_id_key),
            listeners: BTreeMap::new(),
            next_listener: 0,
            table: ConnectionTable::default(),
            time_wait: TimeWait::new(config.time_wait, config.limits.time_wait),
            unsolicited: Unsolicited::default(),
            outgoing: VecDeque::new(),
            events: VecDeque::new(),
            counters: ManagerCounters::default(),
            config,
        }
    }

    /// Accepts REQs for `service_id` from now on.
    ///
    /// # Errors
    /// [`Error::ServiceInUse`] if `service_id` already has a listener.
    pub fn listen(&mut self, service_id: ServiceId) -> Result<ListenerId, Error> {
        if self.listeners.contains_key(&service_id) {
            return Err(Error::ServiceInUse);
        }
        let listener = ListenerId(self.next_listener);
        self.next_listener += 1;
        self.listeners.insert(service_id, listener);
        Ok(listener)
    }

    /// Stops accepting REQs for a listener. Requests already reported to the caller remain.
    pub fn unlisten(&mut self, listener: ListenerId) {
        self.listeners.retain(|_, &mut other| other != listener);
    }

    /// Sends a REQ. [`ManagerEvent::Accepted`], [`ManagerEvent::Rejected`] or
    /// [`ManagerEvent::Failed`] follows.
    ///
    /// # Errors
    /// [`Error::PrivateDataTooLong`] if the private data does not fit into the REQ;
    /// [`Error::TooManyConnections`] beyond [`super::ManagerLimits::connections`].
    pub fn connect(
        &mut self,
        now: Time,
        connect: &ConnectParams<'_>,
    ) -> Result<ConnectionId, Error> {
        if self.is_full() {
            return Err(Error::TooManyConnections);
        }
        let local = self.draw_comm_id();
        let req = connection::req(local, connect, &self.config).ok_or(Error::PrivateDataTooLong)?;
        let transaction_id = self.transaction_id(local);
        let connection =
            ManagedConnection::active(now, local, transaction_id, &req, connect, &self.config);
        let id = self.table.insert(connection);
        self.send_again(id);
        Ok(id)
    }

    /// Active side, after [`ManagerEvent::Accepted`]: our queue pair is connected. Sends the RTU;
    /// the connection is established.
    ///
    /// # Errors
    /// [`Error::UnknownConnection`] for a closed connection; [`Error::WrongState`] unless the peer
    /// has accepted and the connection is not confirmed yet.
    pub fn confirm(&mut self, id: ConnectionId) -> Result<(), Error> {
        let connection = self.known(id)?;
        let ConnectionState::RepReceived = connection.state else { return Err(Error::WrongState) };
        let (agreement, rtu) = (connection.agreement, connection.rtu());
        self.table.set_state(id, ConnectionState::Established);
        self.send_of(&agreement, rtu);
        Ok(())
    }

    /// Passive side, after [`ManagerEvent::Request`]: accepts the connection. The caller connects
    /// its queue pair with the returned agreement, and only then sends the datagrams of
    /// [`Manager::poll_transmit`]. [`ManagerEvent::Established`] or an event that ends the
    /// connection follows.
    ///
    /// # Errors
    /// [`Error::UnknownConnection`] for a closed connection; [`Error::WrongState`] if the request
    /// was already answered; [`Error::PrivateDataTooLong`] beyond 196 bytes.
    pub fn accept(
        &mut self,
        now: Time,
        id: ConnectionId,
        accept: &AcceptParams<'_>,
    ) -> Result<Agreement, Error> {
        let ConnectionState::ReqReceived = self.known(id)?.state else {
            return Err(Error::WrongState);
        };
        let private_data = padded(accept.private_data).ok_or(Error::PrivateDataTooLong)?;
        let connection = self.table.get_mut(id).ok_or(Error::UnknownConnection)?;
        connection.grant(accept);
        let agreement = connection.agreement;
        let rep = connection.rep(accept, &self.config, private_data);
        let resend = Resend::new(now, rep, connection.max_retries, &self.config);
        self.table.set_state(id, ConnectionState::RepSent(resend));
        self.send_again(id);
        Ok(agreement)
    }

    /// Passive side, after [`ManagerEvent::Request`]: rejects the connection with reason
    /// [`RejectReason::CONSUMER_DEFINED`] and up to 148 bytes of private data, and closes it.
    ///
    /// # Errors
    /// [`Error::UnknownConnection`] for a closed connection; [`Error::WrongState`] if the request
    /// was already answered; [`Error::PrivateDataTooLong`] beyond 148 bytes.
    pub fn reject(
        &mut self,
        now: Time,
        id: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), Error> {
        let connection = self.known(id)?;
        let ConnectionState::ReqReceived = connection.state else { return Err(Error::WrongState) };
        let private_data = padded(private_data).ok_or(Error::PrivateDataTooLong)?;
        let agreement = connection.agreement;
        let rej =
            connection.rej(RejectedMessage::REQ, RejectReason::CONSUMER_DEFINED, &[], private_data);
        self.send_of(&agreement, rej);
        self.end(now, id, Some(rej));
        self.table.remove(id);
        Ok(())
    }

    /// Passive side: a packet has arrived on the queue pair of an accepted connection, so the peer
    /// has connected its own even if its RTU is late or lost. Establishes the connection; no effect
    /// in other states.
    pub fn packet_arrived(&mut self, id: ConnectionId) {
        if let Some(ConnectionState::RepSent(_)) =
            self.table.get(id).map(|connection| &connection.state)
        {
            self.established(id);
        }
    }

    /// Disconnects. [`ManagerEvent::Disconnected`] follows when the peer has answered or the
    /// retries are used up, or immediately if the connection was not established. No effect if it
    /// has ended already.
    pub fn disconnect(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            ConnectionState::Established => self.start_disconnect(now, id),
            ConnectionState::DreqSent(_) | ConnectionState::Ended => {}
            _ => {
                self.reject_unestablished(now, id);
                let event = ManagerEvent::Disconnected { connection: id, confirmed: false };
                self.finish(now, id, event);
            }
        }
    }

    /// Closes a connection; no event of it follows. The peer is notified if it may consider the
    /// connection alive.
    pub fn close(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        if let Some(caller) = connection.caller.step(CallerEvent::Closed) {
            connection.caller = caller;
        }
        match connection.state {
            ConnectionState::Established => self.start_disconnect(now, id),
            ConnectionState::DreqSent(_) => {}
            ConnectionState::Ended => self.table.remove(id),
            _ => {
                self.reject_unestablished(now, id);
                self.end(now, id, None);
                self.table.remove(id);
            }
        }
    }

    /// The network reported that `peer` is unreachable, for instance by an ICMP error: active
    /// connections that wait for an answer fail. Established connections remain, since their queue
    /// pairs detect the loss. Connections with an unanswered DREQ remain, since the peer may still
    /// have the connection or be restarting. Passive connections remain, since their peer exists
    /// and such reports can be forged.
    pub fn handle_unreachable(&mut self, now: Time, peer: SocketAddr) {
        let concerned = |connection: &ManagedConnection| {
            connection.agreement.peer == peer
                && connection.side == Side::Active
                && !matches!(connection.state, ConnectionState::DreqSent(_))
        };
        let waiting: alloc::vec::Vec<_> = self
            .table
            .waiting()
            .map(|(_, id)| id)
            .filter(|&id| self.table.get(id).is_some_and(concerned))
            .collect();
        for id in waiting {
            self.give_up(now, id, ConnectionFailure::Unreachable);
        }
    }

    /// The time by which [`Manager::handle_deadline`] must be called; `None` for no such time.
    pub fn deadline(&self) -> Option<Time> {
        self.table.next_waiting().map(|(deadline, _)| deadline)
    }

    /// Repeats unanswered messages that are due, and fails connections without retries left.
    pub fn handle_deadline(&mut self, now: Time) {
        self.time_wait.expire(now);
        let longest = self.config.response_timeout.duration();
        while let Some((deadline, id)) = self.table.next_waiting() {
            if deadline > now {
                return;
            }
            if self.table.reschedule(id, |resend| resend.retry(now, longest)) == Some(true) {
                self.repeat(now, id);
            } else {
                self.send_timeout(now, id);
                self.give_up(now, id, ConnectionFailure::Timeout);
            }
        }
    }

    /// The next datagram to send, if any.
    pub fn poll_transmit(&mut self) -> Option<MadTransmit> {
        let mut next = self.outgoing.pop_front()?;
        self.config.sender.mark(&mut next.mad);
        self.counters.sent += 1;
        Some(next)
    }

    /// The next event, if any.
    pub fn poll_event(&mut self) -> Option<ManagerEvent> {
        loop {
            let event = self.events.pop_front()?;
            if let Some(connection) = self.table.get_mut(event.connection())
                && let Some(caller @ Caller::Informed) = connection.caller.step(CallerEvent::Told)
            {
                connection.caller = caller;
                return Some(event);
            }
        }
    }

    /// The parameters of a connection agreed on so far; `None` if it is closed.
    pub fn agreement(&self, id: ConnectionId) -> Option<&Agreement> {
        self.known(id).ok().map(|connection| &connection.agreement)
    }

    /// Number of connections in any state.
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Number of passive connections that are not established.
    pub fn half_open(&self) -> usize {
        self.table.half_open()
    }

    /// Counters since the manager was created.
    pub fn counters(&self) -> &ManagerCounters {
        &self.counters
    }

    /// A connection that the caller has not closed.
    fn known(&self, id: ConnectionId) -> Result<&ManagedConnection, Error> {
        let known = self.table.get(id).filter(|connection| connection.caller != Caller::Done);
        known.ok_or(Error::UnknownConnection)
    }

    pub(super) fn draw_comm_id(&mut self) -> CommId {
        loop {
            let id = self.comm_ids.draw();
            if !self.table.is_comm_id_taken(id) {
                return id;
            }
        }
    }

    pub(super) fn transaction_id(&self, local: CommId) -> u64 {
        u64::from(self.comm_ids.process_tag()) << 32 | u64::from(local.0)
    }

    /// Sends a message that belongs to no connection.
    pub(super) fn send(&mut self, peer: SocketAddr, mad: Mad) {
        self.enqueue(MadTransmit { peer, traffic_class: 0, mad });
    }

    /// Sends a message of a connection.
    pub(super) fn send_of(&mut self, agreement: &Agreement, mad: Mad) {
        let Agreement { peer, traffic_class, .. } = *agreement;
        self.enqueue(MadTransmit { peer, traffic_class, mad });
    }

    fn enqueue(&mut self, transmit: MadTransmit) {
        if self.outgoing.len() >= self.config.limits.outgoing {
            self.counters.dropped += 1;
            return;
        }
        self.outgoing.push_back(transmit);
    }

    /// Whether the maximum number of connections, half-open ones not counted, is reached.
    pub(super) fn is_full(&self) -> bool {
        self.table.len() - self.table.half_open() >= self.config.limits.connections
    }

    /// Evicts a half-open connection if a limit for a new one with `peer` is reached. The evicted
    /// peer gets no message, since it may not know of the connection.
    pub(super) fn evict_half_open(&mut self, peer: IpAddr) {
        let limits = self.config.limits;
        let of_peer = self.table.half_open_from_beyond(peer, limits.half_open_per_peer);
        let Some(id) = of_peer.or_else(|| self.table.half_open_beyond(limits.half_open)) else {
            return;
        };
        self.counters.evicted += 1;
        self.table.end(id);
        self.report_end(
            id,
            ManagerEvent::Failed { connection: id, failure: ConnectionFailure::Evicted },
        );
    }

    /// Repeats the message of a connection, if the limit on unsolicited messages allows it.
    fn repeat(&mut self, now: Time, id: ConnectionId) {
        if self.may_send_unsolicited(now, id) {
            self.counters.retries += 1;
            self.send_again(id);
        }
    }

    /// Checks and counts a message that answers none of the peer's own.
    fn may_send_unsolicited(&mut self, now: Time, id: ConnectionId) -> bool {
        let Some(connection) = self.table.get_mut(id) else { return false };
        let per_second = self.config.limits.unsolicited_per_second;
        connection.contact.permit_unsolicited(|| self.unsolicited.take(now, per_second))
    }

    /// Sends the message of a state that waits for an answer.
    pub(super) fn send_again(&mut self, id: ConnectionId) {
        let Some(connection) = self.table.get_mut(id) else { return };
        let agreement = connection.agreement;
        if let Some(mad) = connection.state.resend().map(|resend| resend.mad) {
            self.send_of(&agreement, mad);
        }
    }

    pub(super) fn push_event(&mut self, event: ManagerEvent) {
        self.events.push_back(event);
    }

    /// Establishes a passive connection whose peer has proved that it got our REP.
    pub(super) fn established(&mut self, id: ConnectionId) {
        self.table.set_state(id, ConnectionState::Established);
        if let Some(connection) = self.table.get_mut(id) {
            connection.contact = Contact::Confirmed;
        }
        self.push_event(ManagerEvent::Established { connection: id });
    }

    pub(super) fn start_disconnect(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        let dreq = connection.dreq();
        let resend = Resend::new(now, dreq, self.config.disconnect_retries, &self.config);
        self.table.set_state(id, ConnectionState::DreqSent(resend));
        self.send_again(id);
    }

    /// Ends a connection that gets no answer, and reports it.
    fn give_up(&mut self, now: Time, id: ConnectionId, failure: ConnectionFailure) {
        let event = match self.table.get(id).map(|connection| &connection.state) {
            Some(ConnectionState::DreqSent(_)) => {
                ManagerEvent::Disconnected { connection: id, confirmed: false }
            }
            _ => ManagerEvent::Failed { connection: id, failure },
        };
        self.finish(now, id, event);
    }

    /// Ends a connection and reports it.
    pub(super) fn finish(&mut self, now: Time, id: ConnectionId, event: ManagerEvent) {
        self.end(now, id, None);
        self.report_end(id, event);
    }

    /// Reports the end of a connection if the caller knows the connection; else removes it.
    fn report_end(&mut self, id: ConnectionId, event: ManagerEvent) {
        let Some(connection) = self.table.get(id) else { return };
        match connection.caller.step(CallerEvent::Ended) {
            Some(_) => self.push_event(event),
            None => {
                self.events.retain(|event| event.connection() != id);
                self.table.remove(id);
            }
        }
    }

    /// Ends a connection. `answer` is repeated to late duplicates of its REQ.
    fn end(&mut self, now: Time, id: ConnectionId, answer: Option<Mad>) {
        let Some(connection) = self.table.get(id) else { return };
        let side = connection.side;
        if let Some(name) = self.table.end(id)
            && side == Side::Passive
        {
            self.time_wait.insert(now, name, answer);
        }
    }

    /// Sends a REJ with reason timeout for a connection whose peer did not answer.
    fn send_timeout(&mut self, now: Time, id: ConnectionId) {
        if !self.may_send_unsolicited(now, id) {
            return;
        }
        let guid = self.config.ca_guid.to_be_bytes();
        let Some(connection) = self.table.get(id) else { return };
        let rejected = match connection.state {
            ConnectionState::ReqSent(_) => RejectedMessage::REQ,
            ConnectionState::RepSent(_) => RejectedMessage::REP,
            _ => return,
        };
        let agreement = connection.agreement;
        let rej = connection.rej(rejected, RejectReason::TIMEOUT, &guid, NO_PRIVATE_DATA);
        self.send_of(&agreement, rej);
    }

    /// Sends a REJ for a connection that is closed before it is established. In `ReqReceived` it
    /// answers the REQ; in other states it is unsolicited.
    fn reject_unestablished(&mut self, now: Time, id: ConnectionId) {
        let Some(connection) = self.table.get(id) else { return };
        let is_answer = matches!(connection.state, ConnectionState::ReqReceived);
        if !is_answer && !self.may_send_unsolicited(now, id) {
            return;
        }
        let guid = self.config.ca_guid.to_be_bytes();
        let Some(connection) = self.table.get(id) else { return };
        let (rejected, reason, info) = match connection.state {
            // The peer's communication id is unknown, so the REJ identifies the connection by ours
            // and our GUID.
            ConnectionState::ReqSent(_) => (RejectedMessage::REQ, RejectReason::TIMEOUT, &guid[..]),
            ConnectionState::ReqReceived => {
                (RejectedMessage::REQ, RejectReason::CONSUMER_DEFINED, &[][..])
            }
            ConnectionState::RepReceived => {
                (RejectedMessage::REP, RejectReason::CONSUMER_DEFINED, &[][..])
            }
            ConnectionState::RepSent(_) => {
                (RejectedMessage::OTHER, RejectReason::CONSUMER_DEFINED, &[][..])
            }
            ConnectionState::Established
            | ConnectionState::DreqSent(_)
            | ConnectionState::Ended => return,
        };
        let agreement = connection.agreement;
        let rej = connection.rej(rejected, reason, info, NO_PRIVATE_DATA);
        self.send_of(&agreement, rej);
    }
}

const NO_PRIVATE_DATA: [u8; super::Rej::PRIVATE_DATA_BYTES] = [0; super::Rej::PRIVATE_DATA_BYTES];

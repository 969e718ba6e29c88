//! Processing of received datagrams.

use core::net::{IpAddr, SocketAddr};
use core::time::Duration;

use super::connection::{self, ConnectionState, Contact, ManagedConnection, Remote, Resend, Side};
use super::declined::Declined;
use super::time_wait::Answered;
use super::{
    CommId, ConnectionFailure, ConnectionId, ConnectionRequest, Drep, Dreq, Gid, IpHeader,
    ListenerId, Mad, MadError, MadPrivateData, ManagementMessage, Manager, ManagerEvent, Mra,
    ReceivedMessage, Rej, RejectReason, RejectedMessage, Rep, Req, Rtu, Sender, TimeoutExponent,
    TransportService,
};
use crate::{PathMtu, Qpn, Time};

/// Maximum delay by one MRA of a peer: about two minutes. Linux uses one.
const LONGEST_DELAY: Duration = TimeoutExponent::saturating(25).duration();

/// A valid REQ, which the caller may accept.
struct Admissible {
    listener: ListenerId,
    path_mtu: PathMtu,
    addresses: Option<IpHeader>,
    private_data: MadPrivateData,
}

/// The reason why a REQ is rejected, with additional information.
struct ReqRejection {
    reason: RejectReason,
    info: Option<u8>,
}

impl From<RejectReason> for ReqRejection {
    fn from(reason: RejectReason) -> Self {
        Self { reason, info: None }
    }
}

impl Manager {
    /// Processes a datagram that came to QP1 from the endpoint `from`. The caller has checked the
    /// packet's ICRC, opcode and Q_Key. A datagram without a supported message is dropped silently,
    /// as the specification requires. Answers go to `from`, and it is compared with the `peer` of
    /// [`super::ConnectParams`]: a caller that gets an endpoint in several forms (IPv4-mapped
    /// address, flow label) must normalise it.
    ///
    /// `path_to` returns the path MTU to a new peer, if known.
    pub fn handle_datagram(
        &mut self,
        now: Time,
        from: SocketAddr,
        mad: &Mad,
        path_to: impl FnOnce(IpAddr) -> Option<PathMtu>,
    ) {
        self.counters.received += 1;
        let (transaction_id, message) = match ManagementMessage::parse(mad) {
            Ok(parsed) => parsed,
            Err(MadError::UnsupportedAttribute(_)) => return self.decline(from, mad),
            Err(MadError::NotConnectionManagement) => {
                self.counters.malformed += 1;
                return;
            }
        };
        let sender = Sender::of(mad);
        match message {
            ManagementMessage::Req(req) => {
                self.handle_req(now, from, sender, transaction_id, &req, path_to);
            }
            ManagementMessage::Mra(mra) => self.handle_mra(now, from, &mra),
            ManagementMessage::Rej(rej) => self.handle_rej(now, from, &rej),
            ManagementMessage::Rep(rep) => self.handle_rep(now, from, sender, transaction_id, &rep),
            ManagementMessage::Rtu(rtu) => self.handle_rtu(from, &rtu),
            ManagementMessage::Dreq(dreq) => self.handle_dreq(now, from, transaction_id, &dreq),
            ManagementMessage::Drep(drep) => self.handle_drep(now, from, &drep),
        }
    }

    /// Answers an unsupported request negatively.
    fn decline(&mut self, from: SocketAddr, mad: &Mad) {
        let Some((transaction_id, request)) = Declined::parse(mad) else {
            self.counters.malformed += 1;
            return;
        };
        let answer = match request {
            Declined::Lap(lap) => {
                let (theirs, ours) = lap.names();
                lap.answer(transaction_id, self.find(from, theirs, ours).is_some())
            }
            Declined::Sidr(request) => request.answer(transaction_id),
        };
        self.send(from, answer);
    }

    fn handle_req(
        &mut self,
        now: Time,
        from: SocketAddr,
        sender: Sender,
        transaction_id: u64,
        req: &Req,
        path_to: impl FnOnce(IpAddr) -> Option<PathMtu>,
    ) {
        if self.answer_known_request(now, from, transaction_id, req) {
            return;
        }
        let admissible = match self.admit(from, req, path_to) {
            Ok(admissible) => admissible,
            Err(refusal) => return self.refuse(from, transaction_id, req, &refusal),
        };
        if let Some(old) = self.table.by_qp(from, req.local_ca_guid, req.local_qpn) {
            self.abandon_stale(now, old);
            return self.refuse(from, transaction_id, req, &RejectReason::STALE_CONNECTION.into());
        }
        self.evict_half_open(from.ip());
        let local = self.draw_comm_id();
        let connection = ManagedConnection::passive(
            local,
            transaction_id,
            from,
            sender,
            req,
            admissible.path_mtu,
            &self.config,
        );
        let request = admissible.request(&connection);
        let id = self.table.insert(connection);
        self.push_event(ManagerEvent::Request {
            listener: admissible.listener,
            connection: id,
            request,
        });
    }

    /// Handles a REQ for a connection that exists or existed; returns whether it was one.
    fn answer_known_request(
        &mut self,
        now: Time,
        from: SocketAddr,
        transaction_id: u64,
        req: &Req,
    ) -> bool {
        let name = (from, req.local_ca_guid, req.local_comm_id);
        if let Some(id) = self.table.by_remote(name) {
            self.answer_duplicate(now, id, from, transaction_id, req);
            return true;
        }
        let again = match self.time_wait.get(now, name) {
            None => return false,
            Some(Answered::With(mad)) => Some(*mad),
            Some(Answered::Stale) => None,
        };
        self.counters.duplicates += 1;
        match again {
            Some(mad) => self.send(from, mad),
            None => {
                self.refuse(from, transaction_id, req, &RejectReason::STALE_CONNECTION.into());
            }
        }
        true
    }

    /// Handles a REQ with the communication id of an existing connection: a duplicate, or a REQ of
    /// a peer that was restarted.
    fn answer_duplicate(
        &mut self,
        now: Time,
        id: ConnectionId,
        from: SocketAddr,
        transaction_id: u64,
        req: &Req,
    ) {
        let service_timeout = self.config.service_timeout;
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.contact.note_request();
        if !connection.is_duplicate(req) {
            self.abandon_stale(now, id);
            return self.refuse(from, transaction_id, req, &RejectReason::STALE_CONNECTION.into());
        }
        self.counters.duplicates += 1;
        match connection.state {
            ConnectionState::ReqReceived => {
                let mra = connection.mra(ReceivedMessage::REQ, service_timeout);
                let agreement = connection.agreement;
                self.send_of(&agreement, mra);
            }
            ConnectionState::RepSent(_) => self.send_again(id),
            _ => {}
        }
    }

    fn admit(
        &self,
        from: SocketAddr,
        req: &Req,
        path_to: impl FnOnce(IpAddr) -> Option<PathMtu>,
    ) -> Result<Admissible, ReqRejection> {
        let listener =
            *self.listeners.get(&req.service_id).ok_or(RejectReason::INVALID_SERVICE_ID)?;
        if req.transport != TransportService::RC {
            return Err(RejectReason::INVALID_TRANSPORT_SERVICE.into());
        }
        if !is_connectable(req.local_qpn) {
            return Err(RejectReason::UNSUPPORTED.into());
        }
        let (addresses, private_data) =
            connection::consumer_data(req.service_id, &req.private_data)
                .ok_or(RejectReason::UNSUPPORTED)?;
        // The peer named in the REQ must be the sender, to which answers go.
        let claimed = addresses.map_or(from.ip(), |header| header.source.ip());
        if req.primary_path.local_gid != Gid::from(from.ip()) || claimed != from.ip() {
            return Err(RejectReason::INVALID_GID.into());
        }
        if self.is_full() {
            return Err(RejectReason::NO_RESOURCES.into());
        }
        let longest =
            path_to(from.ip()).map_or(self.config.path_mtu, |mtu| mtu.min(self.config.path_mtu));
        let path_mtu = PathMtu::from_code(req.path_mtu_code).filter(|mtu| *mtu <= longest).ok_or(
            ReqRejection { reason: RejectReason::INVALID_PATH_MTU, info: Some(longest.code()) },
        )?;
        Ok(Admissible { listener, path_mtu, addresses, private_data })
    }

    /// Rejects a REQ without creating a connection.
    fn refuse(&mut self, from: SocketAddr, transaction_id: u64, req: &Req, refusal: &ReqRejection) {
        self.counters.refused += 1;
        let rej = connection::rej(
            CommId::NONE,
            req.local_comm_id,
            RejectedMessage::REQ,
            refusal.reason,
            refusal.info.as_slice(),
        );
        self.send(from, ManagementMessage::Rej(rej).to_mad(transaction_id));
    }

    /// Ends a connection that the peer no longer knows, since it uses its communication id or queue
    /// pair for another connection.
    fn abandon_stale(&mut self, now: Time, id: ConnectionId) {
        match self.table.get(id).map(|connection| &connection.state) {
            Some(ConnectionState::Established) => self.start_disconnect(now, id),
            None | Some(ConnectionState::DreqSent(_) | ConnectionState::Ended) => {}
            Some(_) => {
                self.finish(
                    now,
                    id,
                    ManagerEvent::Failed { connection: id, failure: ConnectionFailure::Stale },
                );
            }
        }
    }

    fn handle_rep(
        &mut self,
        now: Time,
        from: SocketAddr,
        sender: Sender,
        transaction_id: u64,
        rep: &Rep,
    ) {
        let Some(id) = self.table.by_comm_id(rep.remote_comm_id, from) else {
            self.counters.unknown_connection += 1;
            return self.reject_rep(from, transaction_id, rep, RejectReason::INVALID_COMM_ID);
        };
        let Some(connection) = self.table.get(id) else { return };
        if matches!(connection.state, ConnectionState::ReqSent(_)) {
            return self.take_rep(now, from, sender, transaction_id, id, rep);
        }
        if connection.side == Side::Passive || connection.remote_comm_id() != rep.local_comm_id {
            return;
        }
        let again = match connection.state {
            ConnectionState::RepReceived => {
                connection.mra(ReceivedMessage::REP, self.config.service_timeout)
            }
            ConnectionState::Established => connection.rtu(),
            _ => return,
        };
        let agreement = connection.agreement;
        self.counters.duplicates += 1;
        self.send_of(&agreement, again);
    }

    /// Handles the first REP to our REQ.
    fn take_rep(
        &mut self,
        now: Time,
        from: SocketAddr,
        sender: Sender,
        transaction_id: u64,
        id: ConnectionId,
        rep: &Rep,
    ) {
        let remote = Remote { comm_id: rep.local_comm_id, ca_guid: rep.local_ca_guid };
        if !is_connectable(rep.local_qpn) {
            self.reject_rep(from, transaction_id, rep, RejectReason::UNSUPPORTED);
            let failure = ConnectionFailure::InvalidReply;
            return self.finish(now, id, ManagerEvent::Failed { connection: id, failure });
        }
        let old = self
            .table
            .by_qp(from, remote.ca_guid, rep.local_qpn)
            .or_else(|| self.table.by_remote((from, remote.ca_guid, remote.comm_id)));
        if let Some(old) = old {
            self.abandon_stale(now, old);
            self.reject_rep(from, transaction_id, rep, RejectReason::STALE_CONNECTION);
            return self.finish(
                now,
                id,
                ManagerEvent::Failed { connection: id, failure: ConnectionFailure::Stale },
            );
        }
        let Some(connection) = self.table.get_mut(id) else { return };
        connection.take_grant(sender, rep);
        let agreement = connection.agreement;
        self.table.learn(id, remote);
        self.table.set_state(id, ConnectionState::RepReceived);
        let private_data = MadPrivateData::from_room(&rep.private_data);
        self.push_event(ManagerEvent::Accepted { connection: id, agreement, private_data });
    }

    fn reject_rep(
        &mut self,
        from: SocketAddr,
        transaction_id: u64,
        rep: &Rep,
        reason: RejectReason,
    ) {
        let rej = connection::rej(
            rep.remote_comm_id,
            rep.local_comm_id,
            RejectedMessage::REP,
            reason,
            &[],
        );
        self.send(from, ManagementMessage::Rej(rej).to_mad(transaction_id));
    }

    fn handle_rtu(&mut self, from: SocketAddr, rtu: &Rtu) {
        let Some(id) = self.find(from, rtu.local_comm_id, rtu.remote_comm_id) else { return };
        match self.table.get(id).map(|connection| &connection.state) {
            Some(ConnectionState::RepSent(_)) => self.established(id),
            _ => self.counters.duplicates += 1,
        }
    }

    fn handle_mra(&mut self, now: Time, from: SocketAddr, mra: &Mra) {
        let Some(id) = self.table.by_comm_id(mra.remote_comm_id, from) else {
            self.counters.unknown_connection += 1;
            return;
        };
        let Some(connection) = self.table.get_mut(id) else { return };
        let is_ours = match connection.state {
            ConnectionState::ReqSent(_) => mra.received == ReceivedMessage::REQ,
            ConnectionState::RepSent(_) => {
                mra.received == ReceivedMessage::REP
                    && connection.remote_comm_id() == mra.local_comm_id
            }
            _ => false,
        };
        let Some(left) = connection.delays_left.checked_sub(1).filter(|_| is_ours) else { return };
        connection.delays_left = left;
        connection.contact = Contact::Confirmed;
        let delay = mra.service_timeout.duration().min(LONGEST_DELAY);
        self.table.reschedule(id, |resend| resend.delay(now, delay));
    }

    fn handle_rej(&mut self, now: Time, from: SocketAddr, rej: &Rej) {
        let Some(id) = self.find_rejected(from, rej) else {
            self.counters.unknown_connection += 1;
            return;
        };
        let Some(connection) = self.table.get(id) else { return };
        match connection.state {
            ConnectionState::ReqSent(_) => {
                if !self.retry_with_smaller_mtu(now, id, rej) {
                    self.rejected(now, id, rej);
                }
            }
            ConnectionState::RepReceived
            | ConnectionState::ReqReceived
            | ConnectionState::RepSent(_) => {
                self.rejected(now, id, rej);
            }
            ConnectionState::Established | ConnectionState::DreqSent(_) => {
                self.finish(
                    now,
                    id,
                    ManagerEvent::Disconnected { connection: id, confirmed: true },
                );
            }
            ConnectionState::Ended => {}
        }
    }

    fn rejected(&mut self, now: Time, id: ConnectionId, rej: &Rej) {
        let private_data = MadPrivateData::from_room(&rej.private_data);
        self.finish(
            now,
            id,
            ManagerEvent::Rejected { connection: id, reason: rej.reason, private_data },
        );
    }

    /// The connection that a REJ refers to. A peer that got no answer from us does not know our
    /// communication id; its REJ contains its own, and its GUID.
    fn find_rejected(&self, from: SocketAddr, rej: &Rej) -> Option<ConnectionId> {
        let named = self.table.by_comm_id(rej.remote_comm_id, from).filter(|&id| {
            self.table.get(id).is_some_and(|connection| {
                let remote = connection.remote_comm_id();
                remote == CommId::NONE
                    || rej.local_comm_id == CommId::NONE
                    || rej.local_comm_id == remote
            })
        });
        named.or_else(|| {
            let guid = u64::from_be_bytes(*rej.info().first_chunk()?);
            let is_timeout = rej.reason == RejectReason::TIMEOUT;
            is_timeout
                .then(|| self.table.by_remote((from, guid, rej.local_comm_id)))
                .flatten()
                .filter(|&id| {
                    self.table.get(id).is_some_and(|connection| connection.side == Side::Passive)
                })
        })
    }

    /// Repeats the REQ with the path MTU that a REJ offers; returns false if it offers none that is
    /// smaller.
    fn retry_with_smaller_mtu(&mut self, now: Time, id: ConnectionId, rej: &Rej) -> bool {
        let Some(offer) = offered_mtu(rej) else { return false };
        let Some(connection) = self.table.get_mut(id) else { return false };
        let Some(mut req) = sent_request(&mut connection.state) else { return false };
        if offer >= connection.agreement.path_mtu {
            return false;
        }
        connection.agreement.path_mtu = offer;
        // With the old communication id, the peer would consider it a duplicate and reject it
        // again.
        req.local_comm_id = self.draw_comm_id();
        req.path_mtu_code = offer.code();
        self.table.rename(id, req.local_comm_id);
        let mad = ManagementMessage::Req(req).to_mad(self.transaction_id(req.local_comm_id));
        let resend = Resend::new(now, mad, self.config.max_retries, &self.config);
        self.table.set_state(id, ConnectionState::ReqSent(resend));
        self.send_again(id);
        true
    }

    fn handle_dreq(&mut self, now: Time, from: SocketAddr, transaction_id: u64, dreq: &Dreq) {
        let id = self.find(from, dreq.local_comm_id, dreq.remote_comm_id);
        if let Some(connection) = id.and_then(|id| self.table.get(id))
            && connection.agreement.local_qpn != dreq.remote_qpn
        {
            return;
        }
        // A peer whose connection we do not know has missed our first DREP.
        let drep = ManagementMessage::Drep(Drep {
            local_comm_id: dreq.remote_comm_id,
            remote_comm_id: dreq.local_comm_id,
            private_data: [0; Drep::PRIVATE_DATA_BYTES],
        });
        let drep = drep.to_mad(transaction_id);
        match id.and_then(|id| self.table.get(id)).map(|connection| connection.agreement) {
            Some(agreement) => self.send_of(&agreement, drep),
            None => self.send(from, drep),
        }
        if let Some(id) = id {
            self.finish(now, id, ManagerEvent::Disconnected { connection: id, confirmed: true });
        }
    }

    fn handle_drep(&mut self, now: Time, from: SocketAddr, drep: &Drep) {
        let Some(id) = self.find(from, drep.local_comm_id, drep.remote_comm_id) else { return };
        if let Some(ConnectionState::DreqSent(_)) =
            self.table.get(id).map(|connection| &connection.state)
        {
            self.finish(now, id, ManagerEvent::Disconnected { connection: id, confirmed: true });
        }
    }

    /// The connection with `from` that has these communication ids.
    fn find(&mut self, from: SocketAddr, theirs: CommId, ours: CommId) -> Option<ConnectionId> {
        let found = self.table.by_comm_id(ours, from).filter(|&id| {
            self.table
                .get(id)
                .and_then(|connection| connection.remote)
                .is_some_and(|remote| remote.comm_id == theirs)
        });
        if found.is_none() {
            self.counters.unknown_connection += 1;
        }
        found
    }
}

impl Admissible {
    fn request(&self, connection: &ManagedConnection) -> ConnectionRequest {
        let agreement = &connection.agreement;
        ConnectionRequest {
            peer: agreement.peer,
            addresses: self.addresses,
            remote_qpn: agreement.remote_qpn,
            responder_resources: agreement.responder_resources,
            initiator_depth: agreement.initiator_depth,
            retry_count: agreement.retry_count,
            rnr_retry_count: agreement.rnr_retry_count,
            path_mtu: agreement.path_mtu,
            private_data: self.private_data,
        }
    }
}

/// Queue pairs 0 and 1 are reserved for management.
fn is_connectable(qpn: Qpn) -> bool {
    qpn.value() > 1
}

/// The path MTU that a REJ offers. The code may be in either half of the byte.
fn offered_mtu(rej: &Rej) -> Option<PathMtu> {
    if rej.reason != RejectReason::INVALID_PATH_MTU {
        return None;
    }
    let byte = *rej.info().first()?;
    PathMtu::from_code(byte).or_else(|| PathMtu::from_code(byte >> 4))
}

fn sent_request(state: &mut ConnectionState) -> Option<Req> {
    match ManagementMessage::parse(&state.resend()?.mad) {
        Ok((_, ManagementMessage::Req(req))) => Some(req),
        _ => None,
    }
}

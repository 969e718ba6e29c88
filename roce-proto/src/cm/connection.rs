//! The state of one connection, and the messages for it.

use core::net::SocketAddr;
use core::time::Duration;

use super::caller::Caller;
use super::{
    AcceptParams, Agreement, CommId, ConnectParams, Dreq, Failover, Gid, IpHeader, Mad,
    MadPrivateData, ManagementMessage, ManagerConfig, Mra, ReceivedMessage, Rej, RejectReason,
    RejectedMessage, Rep, Req, ReqPath, Rtu, Sender, ServiceId, TimeoutExponent, TransportService,
    private_data::padded,
};
use crate::{Psn, Qpn, Time};

#[derive(Debug)]
pub(super) struct ManagedConnection {
    pub(super) state: ConnectionState,
    pub(super) local: CommId,
    /// Identity of the peer; `None` until its first message.
    pub(super) remote: Option<Remote>,
    /// Transaction id of all messages of the connection.
    pub(super) transaction_id: u64,
    /// The parameters agreed on so far.
    pub(super) agreement: Agreement,
    pub(super) side: Side,
    pub(super) caller: Caller,
    /// Whether the peer has proved that it receives at the address that its REQ came from.
    pub(super) contact: Contact,
    /// Maximum number of repetitions of a REP, as the REQ requests.
    pub(super) max_retries: u8,
    /// Number of further MRAs of the peer that are accepted.
    pub(super) delays_left: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// This manager sent the REQ.
    Active,
    /// The peer sent the REQ.
    Passive,
}

/// State of the limit on messages to an unproven peer. The source address of a REQ may be forged.
/// Its owner gets one answer per REQ, and per REQ at most one further message (a repetition, REJ or
/// DREQ), within [`super::ManagerLimits::unsolicited_per_second`].
#[derive(Debug)]
pub(super) enum Contact {
    /// The peer has not proved that it receives our messages.
    Claimed { requests: u8, unsolicited: u8 },
    /// The peer sent a value that only our REP contains: our communication id, or our queue pair
    /// number in a packet.
    Confirmed,
}

impl Contact {
    /// Maximum number of unsolicited messages to an unproven peer; there is also at most one per
    /// REQ from it.
    const MAX_UNSOLICITED: u8 = 2;

    const FIRST_REQUEST: Self = Self::Claimed { requests: 1, unsolicited: 0 };

    /// Counts a repeated REQ.
    pub(super) fn note_request(&mut self) {
        if let Self::Claimed { requests, .. } = self {
            *requests = requests.saturating_add(1);
        }
    }

    /// Whether a message that answers no REQ may be sent now; if so, it is counted. `of_all` checks
    /// the limit for all unproven peers together.
    pub(super) fn permit_unsolicited(&mut self, of_all: impl FnOnce() -> bool) -> bool {
        let Self::Claimed { requests, unsolicited } = self else { return true };
        let allowed = *unsolicited < Self::MAX_UNSOLICITED.min(*requests) && of_all();
        *unsolicited += u8::from(allowed);
        allowed
    }
}

/// The peer's identifiers of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub(super) comm_id: CommId,
    pub(super) ca_guid: u64,
}

/// State of a connection (volume 1, 12.9.7), with the message that is repeated in it, if any.
#[derive(Debug)]
pub(super) enum ConnectionState {
    /// Active side: the REQ was sent and not answered.
    ReqSent(Resend),
    /// Active side: the REP was received; the caller connects its queue pair.
    RepReceived,
    /// Passive side: the caller has not answered the REQ.
    ReqReceived,
    /// Passive side: the REP was sent and not answered.
    RepSent(Resend),
    /// Both queue pairs are connected.
    Established,
    DreqSent(Resend),
    /// The connection has ended, and the caller must close it.
    Ended,
}

impl ConnectionState {
    /// Whether the connection is a peer's that is not established yet.
    pub(super) fn is_half_open(&self) -> bool {
        matches!(self, Self::ReqReceived | Self::RepSent(_))
    }

    pub(super) fn resend(&mut self) -> Option<&mut Resend> {
        match self {
            Self::ReqSent(resend) | Self::RepSent(resend) | Self::DreqSent(resend) => Some(resend),
            _ => None,
        }
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        match self {
            Self::ReqSent(resend) | Self::RepSent(resend) | Self::DreqSent(resend) => {
                Some(resend.deadline)
            }
            _ => None,
        }
    }
}

/// A message that is repeated until it is answered.
#[derive(Debug)]
pub(super) struct Resend {
    pub(super) mad: Mad,
    pub(super) deadline: Time,
    retries_left: u8,
    interval: Duration,
}

impl Resend {
    pub(super) fn new(now: Time, mad: Mad, retries: u8, config: &ManagerConfig) -> Self {
        let interval = config.first_retry.max(Duration::from_millis(1));
        Self { mad, deadline: now + interval, retries_left: retries, interval }
    }

    /// Counts a repetition at `now`, and doubles the interval up to `longest`; false if none is
    /// left.
    pub(super) fn retry(&mut self, now: Time, longest: Duration) -> bool {
        let Some(left) = self.retries_left.checked_sub(1) else { return false };
        self.retries_left = left;
        self.interval = (self.interval * 2).min(longest).max(Duration::from_millis(1));
        self.deadline = now + self.interval;
        true
    }

    /// Postpones the next repetition after an MRA.
    pub(super) fn delay(&mut self, now: Time, by: Duration) {
        self.deadline = now + by + self.interval;
    }
}

impl ManagedConnection {
    /// Creates an active connection, whose REQ is to be sent.
    pub(super) fn active(
        now: Time,
        local: CommId,
        transaction_id: u64,
        req: &Req,
        connect: &ConnectParams<'_>,
        config: &ManagerConfig,
    ) -> Self {
        let mad = ManagementMessage::Req(*req).to_mad(transaction_id);
        Self {
            state: ConnectionState::ReqSent(Resend::new(now, mad, config.max_retries, config)),
            local,
            remote: None,
            transaction_id,
            agreement: Agreement {
                peer: connect.peer,
                peer_udp_source: None,
                selective_recovery: config.offers_selective_recovery(),
                local_qpn: connect.qpn,
                remote_qpn: Qpn::default(),
                send_psn: Psn::default(),
                recv_psn: connect.starting_psn,
                path_mtu: connect.path_mtu,
                responder_resources: connect.responder_resources,
                initiator_depth: connect.initiator_depth,
                retry_count: connect.retry_count & 7,
                rnr_retry_count: 0,
                ack_timeout: connect.ack_timeout,
                traffic_class: connect.traffic_class,
            },
            side: Side::Active,
            caller: Caller::Informed,
            contact: Contact::Confirmed,
            max_retries: config.max_retries,
            delays_left: config.max_retries,
        }
    }

    /// Creates a passive connection from a valid REQ.
    pub(super) fn passive(
        local: CommId,
        transaction_id: u64,
        peer: SocketAddr,
        sender: Sender,
        req: &Req,
        path_mtu: crate::PathMtu,
        config: &ManagerConfig,
    ) -> Self {
        Self {
            state: ConnectionState::ReqReceived,
            local,
            remote: Some(Remote { comm_id: req.local_comm_id, ca_guid: req.local_ca_guid }),
            transaction_id,
            agreement: Agreement {
                peer,
                peer_udp_source: told_udp_source(sender, req.local_q_key),
                selective_recovery: config.offers_selective_recovery()
                    && tells_selective_recovery(sender, req.local_eecn),
                local_qpn: Qpn::default(),
                remote_qpn: req.local_qpn,
                send_psn: req.starting_psn,
                recv_psn: Psn::default(),
                path_mtu,
                responder_resources: req.initiator_depth,
                initiator_depth: req.responder_resources,
                retry_count: req.retry_count,
                rnr_retry_count: req.rnr_retry_count,
                ack_timeout: req.primary_path.local_ack_timeout,
                traffic_class: req.primary_path.traffic_class,
            },
            side: Side::Passive,
            caller: Caller::Uninformed,
            contact: Contact::FIRST_REQUEST,
            max_retries: req.max_cm_retries.min(config.max_retries),
            delays_left: config.max_retries,
        }
    }

    /// Adds the parameters of `accept` to the agreement.
    pub(super) fn grant(&mut self, accept: &AcceptParams<'_>) {
        let agreement = &mut self.agreement;
        agreement.local_qpn = accept.qpn;
        agreement.recv_psn = accept.starting_psn;
        agreement.responder_resources = accept.responder_resources;
        agreement.initiator_depth = accept.initiator_depth.min(agreement.initiator_depth);
    }

    /// Adds the parameters of the peer's REP to the agreement. Neither depth exceeds the one in our
    /// REQ.
    pub(super) fn take_grant(&mut self, sender: Sender, rep: &Rep) {
        let agreement = &mut self.agreement;
        agreement.peer_udp_source = told_udp_source(sender, rep.local_q_key);
        agreement.selective_recovery &= tells_selective_recovery(sender, rep.local_eecn);
        agreement.remote_qpn = rep.local_qpn;
        agreement.send_psn = rep.starting_psn;
        agreement.responder_resources = rep.initiator_depth.min(agreement.responder_resources);
        agreement.initiator_depth = rep.responder_resources.min(agreement.initiator_depth);
        agreement.rnr_retry_count = rep.rnr_retry_count;
        agreement.ack_timeout = agreement.ack_timeout.plus(rep.target_ack_delay);
    }

    /// Whether `req` is a duplicate of the REQ that created this connection.
    pub(super) fn is_duplicate(&self, req: &Req) -> bool {
        self.side == Side::Passive
            && self.agreement.remote_qpn == req.local_qpn
            && self.agreement.send_psn == req.starting_psn
    }

    pub(super) fn remote_comm_id(&self) -> CommId {
        self.remote.map_or(CommId::NONE, |remote| remote.comm_id)
    }

    pub(super) fn rtu(&self) -> Mad {
        self.mad(ManagementMessage::Rtu(Rtu {
            local_comm_id: self.local,
            remote_comm_id: self.remote_comm_id(),
            private_data: [0; Rtu::PRIVATE_DATA_BYTES],
        }))
    }

    pub(super) fn dreq(&self) -> Mad {
        self.mad(ManagementMessage::Dreq(Dreq {
            local_comm_id: self.local,
            remote_comm_id: self.remote_comm_id(),
            remote_qpn: self.agreement.remote_qpn,
            private_data: [0; Dreq::PRIVATE_DATA_BYTES],
        }))
    }

    pub(super) fn mra(&self, received: ReceivedMessage, service_timeout: TimeoutExponent) -> Mad {
        self.mad(ManagementMessage::Mra(Mra {
            local_comm_id: self.local,
            remote_comm_id: self.remote_comm_id(),
            received,
            service_timeout,
            private_data: [0; Mra::PRIVATE_DATA_BYTES],
        }))
    }

    pub(super) fn rej(
        &self,
        rejected: RejectedMessage,
        reason: RejectReason,
        info: &[u8],
        private_data: [u8; Rej::PRIVATE_DATA_BYTES],
    ) -> Mad {
        self.mad(ManagementMessage::Rej(Rej {
            private_data,
            ..rej(self.local, self.remote_comm_id(), rejected, reason, info)
        }))
    }

    pub(super) fn rep(
        &self,
        accept: &AcceptParams<'_>,
        config: &ManagerConfig,
        private_data: [u8; Rep::PRIVATE_DATA_BYTES],
    ) -> Mad {
        self.mad(ManagementMessage::Rep(Rep {
            local_comm_id: self.local,
            remote_comm_id: self.remote_comm_id(),
            local_q_key: tell_udp_source(config.sender, accept.udp_source),
            local_qpn: accept.qpn,
            local_eecn: tell_selective_recovery(self.agreement.selective_recovery),
            starting_psn: accept.starting_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: self.agreement.initiator_depth,
            target_ack_delay: config.ack_delay,
            failover: Failover::ACCEPTED,
            end_to_end_flow_control: true,
            rnr_retry_count: accept.rnr_retry_count,
            shared_receive_queue: false,
            local_ca_guid: config.ca_guid,
            private_data,
        }))
    }

    fn mad(&self, message: ManagementMessage) -> Mad {
        message.to_mad(self.transaction_id)
    }
}

/// A REJ without private data. Additional information that does not fit is truncated.
pub(super) fn rej(
    local_comm_id: CommId,
    remote_comm_id: CommId,
    rejected: RejectedMessage,
    reason: RejectReason,
    info: &[u8],
) -> Rej {
    let info = &info[..info.len().min(Rej::INFO_BYTES)];
    let mut field = [0; Rej::INFO_BYTES];
    field[..info.len()].copy_from_slice(info);
    Rej {
        local_comm_id,
        remote_comm_id,
        rejected,
        reason,
        info_length: info.len() as u8,
        info: field,
        private_data: [0; Rej::PRIVATE_DATA_BYTES],
    }
}

/// The REQ for a connection; `None` if its private data does not fit.
pub(super) fn req(
    local: CommId,
    connect: &ConnectParams<'_>,
    config: &ManagerConfig,
) -> Option<Req> {
    Some(Req {
        local_comm_id: local,
        service_id: connect.service_id,
        local_ca_guid: config.ca_guid,
        local_q_key: tell_udp_source(config.sender, connect.udp_source),
        local_qpn: connect.qpn,
        responder_resources: connect.responder_resources,
        local_eecn: tell_selective_recovery(config.offers_selective_recovery()),
        initiator_depth: connect.initiator_depth,
        remote_eecn: 0,
        remote_cm_response_timeout: config.response_timeout,
        transport: TransportService::RC,
        end_to_end_flow_control: true,
        starting_psn: connect.starting_psn,
        local_cm_response_timeout: config.response_timeout,
        retry_count: connect.retry_count,
        partition_key: DEFAULT_PARTITION,
        path_mtu_code: connect.path_mtu.code(),
        rdc_exists: false,
        rnr_retry_count: connect.rnr_retry_count,
        max_cm_retries: config.max_retries.min(15),
        shared_receive_queue: false,
        extended_transport: 0,
        primary_path: path(connect),
        alternate_path: ReqPath::default(),
        private_data: request_private_data(connect)?,
    })
}

/// Sets the Q_Key field, unused with reliable connections, to our UDP source port, if we announce
/// it to Feedrail peers.
fn tell_udp_source(sender: Sender, port: Option<u16>) -> u32 {
    port.filter(|_| sender.is_feedrail()).map_or(0, u32::from)
}

fn told_udp_source(sender: Sender, q_key: u32) -> Option<u16> {
    u16::try_from(q_key).ok().filter(|&port| port != 0 && sender.is_feedrail())
}

/// Flag in the sender's EECN field, unused with reliable connections, by which Feedrail peers
/// announce selective recovery. A REP has it only if the REQ had it.
const SELECTIVE_RECOVERY: u32 = 1;

const fn tell_selective_recovery(selective_recovery: bool) -> u32 {
    if selective_recovery { SELECTIVE_RECOVERY } else { 0 }
}

const fn tells_selective_recovery(sender: Sender, eecn: u32) -> bool {
    sender.is_feedrail() && eecn & SELECTIVE_RECOVERY != 0
}

/// The default partition key, full member.
const DEFAULT_PARTITION: u16 = 0xFFFF;

/// The LID of RoCE, which has no local identifiers.
const NO_LID: u16 = 0xFFFF;

/// The hop limit in the path of a REQ.
const HOP_LIMIT: u8 = 64;

fn path(connect: &ConnectParams<'_>) -> ReqPath {
    ReqPath {
        local_lid: NO_LID,
        remote_lid: NO_LID,
        local_gid: Gid::from(connect.source.ip()),
        remote_gid: Gid::from(connect.peer.ip()),
        flow_label: flow_label(connect),
        packet_rate: 0,
        traffic_class: connect.traffic_class,
        hop_limit: HOP_LIMIT,
        service_level: 0,
        subnet_local: false,
        local_ack_timeout: connect.ack_timeout,
    }
}

/// The flow label, which distributes connections over flows as Linux's RDMA-CM does.
fn flow_label(connect: &ConnectParams<'_>) -> u32 {
    let Some(port) = connect.service_id.port() else { return 0 };
    (u32::from(connect.source.port()) * 31 + u32::from(port)) & 0xF_FFFF
}

fn request_private_data(connect: &ConnectParams<'_>) -> Option<[u8; Req::PRIVATE_DATA_BYTES]> {
    if !connect.service_id.is_rdma_cm() {
        return padded(connect.private_data);
    }
    let header = IpHeader { source: connect.source, destination: connect.peer.ip() };
    let mut room = [0; Req::PRIVATE_DATA_BYTES];
    let (head, consumer) = room.split_at_mut(IpHeader::BYTES);
    head.copy_from_slice(&header.to_bytes());
    consumer.get_mut(..connect.private_data.len())?.copy_from_slice(connect.private_data);
    Some(room)
}

/// Splits the private data of a REQ into the [`IpHeader`], if the service is RDMA-CM's, and the
/// consumer's data. `None` if the header does not parse.
pub(super) fn consumer_data(
    service_id: ServiceId,
    room: &[u8; Req::PRIVATE_DATA_BYTES],
) -> Option<(Option<IpHeader>, MadPrivateData)> {
    if !service_id.is_rdma_cm() {
        return Some((None, MadPrivateData::from_room(room)));
    }
    let header = IpHeader::parse(room)?;
    let consumer = MadPrivateData::new(&room[IpHeader::BYTES..])?;
    Some((Some(header), consumer))
}

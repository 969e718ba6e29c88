//! REQ: the active side requests a connection.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::field::{high24, join24};
use super::{CommId, Gid, MESSAGE_BYTES, ServiceId, TimeoutExponent};
use crate::{Psn, Qpn};

/// Request for communication (InfiniBand volume 1, table 106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Req {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The service to connect to.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Q_Key, unused with reliable connections; a Feedrail sender puts its UDP source port here,
    /// else zero.
    pub local_q_key: u32,
    /// The sender's queue pair number.
    pub local_qpn: Qpn,
    /// RDMA READs that the sender serves concurrently.
    pub responder_resources: u8,
    /// End-to-end context, 24 bits, unused with reliable connections; a Feedrail sender sets a flag
    /// for selective recovery here, else zero.
    pub local_eecn: u32,
    /// RDMA READs that the sender would like to have in flight.
    pub initiator_depth: u8,
    /// End-to-end context of reliable datagrams, 24 bits; zero.
    pub remote_eecn: u32,
    /// How long the sender waits for answers of the receiver.
    pub remote_cm_response_timeout: TimeoutExponent,
    /// Transport service type; 0 is reliable connection.
    pub transport: TransportService,
    /// Whether the sender's responder sends end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// First PSN that the *receiver* shall send.
    pub starting_psn: Psn,
    /// How long the sender may take to answer.
    pub local_cm_response_timeout: TimeoutExponent,
    /// Maximum number of retries of the receiver's queue pair after an ACK timeout, 0..=7.
    pub retry_count: u8,
    /// Partition key of the connection's packets.
    pub partition_key: u16,
    /// Path MTU as a code, 1 (256 bytes) to 5 (4,096 bytes).
    pub path_mtu_code: u8,
    /// Flag of reliable datagrams: an RD channel exists; false.
    pub rdc_exists: bool,
    /// Maximum number of retries of the receiver's queue pair after an RNR NAK, 0..=7.
    pub rnr_retry_count: u8,
    /// Maximum number of repetitions of a message by the receiver, 0..=15.
    pub max_cm_retries: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub shared_receive_queue: bool,
    /// The extended transport service, if `transport` is [`TransportService::EXTENDED`]; else zero.
    pub extended_transport: u8,
    /// Primary path between the two ports.
    pub primary_path: ReqPath,
    /// Alternate path for automatic path migration; zero.
    pub alternate_path: ReqPath,
    /// Private data of the consumer; with an RDMA-CM service id it begins with an
    /// [`super::IpHeader`].
    pub private_data: [u8; Self::PRIVATE_DATA_BYTES],
}

/// A path between two ports, seen from the sender of the REQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReqPath {
    /// Local identifier of the sender's port; 0xFFFF with RoCE.
    pub local_lid: u16,
    /// Local identifier of the receiver's port; 0xFFFF with RoCE.
    pub remote_lid: u16,
    /// GID of the sender's port.
    pub local_gid: Gid,
    /// GID of the receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Static rate, 6 bits; zero for the rate of the port.
    pub packet_rate: u8,
    /// Traffic class of the path.
    pub traffic_class: u8,
    /// Hop limit of the path.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub service_level: u8,
    /// Whether both ports are in one subnet.
    pub subnet_local: bool,
    /// ACK timeout of the receiver's queue pair: twice the packet lifetime plus the sender's ACK
    /// delay.
    pub local_ack_timeout: TimeoutExponent,
}

/// Transport service type, 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportService(pub u8);

impl TransportService {
    /// Reliable connection, the only supported one; REQs for others are rejected.
    pub const RC: Self = Self(0);
    /// Unreliable connection; not supported.
    pub const UC: Self = Self(1);
    /// Reliable datagram; not supported.
    pub const RD: Self = Self(2);
    /// A service of the extended transport field; not supported.
    pub const EXTENDED: Self = Self(3);
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct ReqWire {
    local_comm_id: U32,
    reserved_4: U32,
    service_id: U64,
    local_ca_guid: U64,
    reserved_24: U32,
    local_q_key: U32,
    local_qpn_responder_resources: U32,
    local_eecn_initiator_depth: U32,
    /// Also: remote CM response timeout (5 bits), transport service type (2), end-to-end flow
    /// control (1).
    remote_eecn_and_service: U32,
    /// Also: local CM response timeout (5 bits), retry count (3).
    starting_psn_and_retry: U32,
    partition_key: U16,
    /// Path MTU (4 bits), RDC exists (1), RNR retry count (3).
    mtu_and_rnr: u8,
    /// Max CM retries (4 bits), shared receive queue (1), extended transport (3).
    cm_retries_and_srq: u8,
    primary_path: PathWire,
    alternate_path: PathWire,
    private_data: [u8; Req::PRIVATE_DATA_BYTES],
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct PathWire {
    local_lid: U16,
    remote_lid: U16,
    local_gid: Gid,
    remote_gid: Gid,
    /// Flow label (20 bits), reserved (6), packet rate (6).
    flow_label_and_rate: U32,
    traffic_class: u8,
    hop_limit: u8,
    /// Service level (4 bits), subnet local (1), reserved (3).
    service_level_and_subnet: u8,
    /// Local ack time-out (5 bits), reserved (3).
    ack_timeout: u8,
}

const _: () = assert!(size_of::<ReqWire>() == MESSAGE_BYTES && size_of::<PathWire>() == 44);

impl Req {
    /// Length of the private data field in bytes.
    pub const PRIVATE_DATA_BYTES: usize = 92;

    /// Parses the message. Reserved bits are ignored.
    pub fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let wire: &ReqWire = zerocopy::transmute_ref!(bytes);
        let (local_qpn, responder_resources) = high24(wire.local_qpn_responder_resources);
        let (local_eecn, initiator_depth) = high24(wire.local_eecn_initiator_depth);
        let (remote_eecn, service) = high24(wire.remote_eecn_and_service);
        let (starting_psn, retry) = high24(wire.starting_psn_and_retry);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            service_id: ServiceId(wire.service_id.get()),
            local_ca_guid: wire.local_ca_guid.get(),
            local_q_key: wire.local_q_key.get(),
            local_qpn: Qpn::new(local_qpn),
            responder_resources,
            local_eecn,
            initiator_depth,
            remote_eecn,
            remote_cm_response_timeout: TimeoutExponent::saturating(service >> 3),
            transport: TransportService(service >> 1 & 3),
            end_to_end_flow_control: service & 1 != 0,
            starting_psn: Psn::new(starting_psn),
            local_cm_response_timeout: TimeoutExponent::saturating(retry >> 3),
            retry_count: retry & 7,
            partition_key: wire.partition_key.get(),
            path_mtu_code: wire.mtu_and_rnr >> 4,
            rdc_exists: wire.mtu_and_rnr & 8 != 0,
            rnr_retry_count: wire.mtu_and_rnr & 7,
            max_cm_retries: wire.cm_retries_and_srq >> 4,
            shared_receive_queue: wire.cm_retries_and_srq & 8 != 0,
            extended_transport: wire.cm_retries_and_srq & 7,
            primary_path: ReqPath::parse(&wire.primary_path),
            alternate_path: ReqPath::parse(&wire.alternate_path),
            private_data: wire.private_data,
        }
    }

    /// Encodes the message. Values too large for their field are truncated.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        let service = self.remote_cm_response_timeout.get() << 3
            | (self.transport.0 & 3) << 1
            | u8::from(self.end_to_end_flow_control);
        let retry = self.local_cm_response_timeout.get() << 3 | self.retry_count & 7;
        zerocopy::transmute!(ReqWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            reserved_4: U32::ZERO,
            service_id: U64::new(self.service_id.0),
            local_ca_guid: U64::new(self.local_ca_guid),
            reserved_24: U32::ZERO,
            local_q_key: U32::new(self.local_q_key),
            local_qpn_responder_resources: join24(self.local_qpn.value(), self.responder_resources),
            local_eecn_initiator_depth: join24(self.local_eecn, self.initiator_depth),
            remote_eecn_and_service: join24(self.remote_eecn, service),
            starting_psn_and_retry: join24(self.starting_psn.value(), retry),
            partition_key: U16::new(self.partition_key),
            mtu_and_rnr: self.path_mtu_code << 4
                | u8::from(self.rdc_exists) << 3
                | self.rnr_retry_count & 7,
            cm_retries_and_srq: self.max_cm_retries << 4
                | u8::from(self.shared_receive_queue) << 3
                | self.extended_transport & 7,
            primary_path: self.primary_path.to_wire(),
            alternate_path: self.alternate_path.to_wire(),
            private_data: self.private_data,
        })
    }
}

impl ReqPath {
    fn parse(wire: &PathWire) -> Self {
        let flow_label_and_rate = wire.flow_label_and_rate.get();
        Self {
            local_lid: wire.local_lid.get(),
            remote_lid: wire.remote_lid.get(),
            local_gid: wire.local_gid,
            remote_gid: wire.remote_gid,
            flow_label: flow_label_and_rate >> 12,
            packet_rate: (flow_label_and_rate & 0x3F) as u8,
            traffic_class: wire.traffic_class,
            hop_limit: wire.hop_limit,
            service_level: wire.service_level_and_subnet >> 4,
            subnet_local: wire.service_level_and_subnet & 8 != 0,
            local_ack_timeout: TimeoutExponent::saturating(wire.ack_timeout >> 3),
        }
    }

    fn to_wire(self) -> PathWire {
        PathWire {
            local_lid: U16::new(self.local_lid),
            remote_lid: U16::new(self.remote_lid),
            local_gid: self.local_gid,
            remote_gid: self.remote_gid,
            flow_label_and_rate: U32::new(
                self.flow_label << 12 | u32::from(self.packet_rate & 0x3F),
            ),
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            service_level_and_subnet: self.service_level << 4 | u8::from(self.subnet_local) << 3,
            ack_timeout: self.local_ack_timeout.get() << 3,
        }
    }
}

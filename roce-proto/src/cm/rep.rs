//! REP: the passive side accepts a connection.

use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::field::{high24, join24};
use super::{CommId, MESSAGE_BYTES, TimeoutExponent};
use crate::{Psn, Qpn};

/// Reply to request for communication (InfiniBand volume 1, table 110).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rep {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// Q_Key, unused with reliable connections; a Feedrail sender puts its UDP source port here,
    /// else zero.
    pub local_q_key: u32,
    /// The sender's queue pair number.
    pub local_qpn: Qpn,
    /// End-to-end context, 24 bits, unused with reliable connections; between Feedrail peers it has
    /// a flag for selective recovery, else zero.
    pub local_eecn: u32,
    /// First PSN that the *receiver* shall send.
    pub starting_psn: Psn,
    /// RDMA READs that the sender serves concurrently.
    pub responder_resources: u8,
    /// RDMA READs that the sender may have in flight.
    pub initiator_depth: u8,
    /// Target ACK delay: how long the sender takes to acknowledge a packet.
    pub target_ack_delay: TimeoutExponent,
    /// Whether the alternate path in the REQ was accepted.
    pub failover: Failover,
    /// Whether the sender's responder sends end-to-end credits.
    pub end_to_end_flow_control: bool,
    /// Maximum number of retries of the receiver's queue pair after an RNR NAK, 0..=7.
    pub rnr_retry_count: u8,
    /// Whether the sender's queue pair uses a shared receive queue.
    pub shared_receive_queue: bool,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Private data of the consumer, padded with zeros.
    pub private_data: [u8; Self::PRIVATE_DATA_BYTES],
}

/// Whether an alternate path was accepted, 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover(pub u8);

impl Failover {
    /// Accepted, or no alternate path was requested.
    pub const ACCEPTED: Self = Self(0);
    /// The sender does not support alternate paths.
    pub const NOT_SUPPORTED: Self = Self(1);
    /// The sender supports alternate paths, but not this one.
    pub const REJECTED: Self = Self(2);
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RepWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    local_q_key: U32,
    local_qpn: U32,
    local_eecn: U32,
    starting_psn: U32,
    responder_resources: u8,
    initiator_depth: u8,
    /// Target ack delay (5 bits), failover accepted (2), end-to-end flow control (1).
    delay_and_failover: u8,
    /// RNR retry count (3 bits), shared receive queue (1), reserved (4).
    rnr_and_srq: u8,
    local_ca_guid: U64,
    private_data: [u8; Rep::PRIVATE_DATA_BYTES],
}

const _: () = assert!(size_of::<RepWire>() == MESSAGE_BYTES);

impl Rep {
    /// Length of the private data field in bytes.
    pub const PRIVATE_DATA_BYTES: usize = 196;

    /// Parses the message. Reserved bits are ignored.
    pub fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let wire: &RepWire = zerocopy::transmute_ref!(bytes);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            local_q_key: wire.local_q_key.get(),
            local_qpn: Qpn::new(high24(wire.local_qpn).0),
            local_eecn: high24(wire.local_eecn).0,
            starting_psn: Psn::new(high24(wire.starting_psn).0),
            responder_resources: wire.responder_resources,
            initiator_depth: wire.initiator_depth,
            target_ack_delay: TimeoutExponent::saturating(wire.delay_and_failover >> 3),
            failover: Failover(wire.delay_and_failover >> 1 & 3),
            end_to_end_flow_control: wire.delay_and_failover & 1 != 0,
            rnr_retry_count: wire.rnr_and_srq >> 5,
            shared_receive_queue: wire.rnr_and_srq & 0x10 != 0,
            local_ca_guid: wire.local_ca_guid.get(),
            private_data: wire.private_data,
        }
    }

    /// Encodes the message. Values too large for their field are truncated.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        zerocopy::transmute!(RepWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            local_q_key: U32::new(self.local_q_key),
            local_qpn: join24(self.local_qpn.value(), 0),
            local_eecn: join24(self.local_eecn, 0),
            starting_psn: join24(self.starting_psn.value(), 0),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            delay_and_failover: self.target_ack_delay.get() << 3
                | (self.failover.0 & 3) << 1
                | u8::from(self.end_to_end_flow_control),
            rnr_and_srq: self.rnr_retry_count << 5 | u8::from(self.shared_receive_queue) << 4,
            local_ca_guid: U64::new(self.local_ca_guid),
            private_data: self.private_data,
        })
    }
}

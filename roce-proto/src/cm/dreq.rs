//! DREQ: request of either side to disconnect.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::field::{high24, join24};
use super::{CommId, MESSAGE_BYTES};
use crate::Qpn;

/// Disconnect request (InfiniBand volume 1, table 112).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dreq {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The receiver's queue pair number.
    pub remote_qpn: Qpn,
    /// Private data of the consumer, padded with zeros.
    pub private_data: [u8; Self::PRIVATE_DATA_BYTES],
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct DreqWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    remote_qpn: U32,
    private_data: [u8; Dreq::PRIVATE_DATA_BYTES],
}

const _: () = assert!(size_of::<DreqWire>() == MESSAGE_BYTES);

impl Dreq {
    /// Length of the private data field in bytes.
    pub const PRIVATE_DATA_BYTES: usize = 220;

    /// Parses the message. Reserved bits are ignored.
    pub fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let wire: &DreqWire = zerocopy::transmute_ref!(bytes);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            remote_qpn: Qpn::new(high24(wire.remote_qpn).0),
            private_data: wire.private_data,
        }
    }

    /// Encodes the message. Values too large for their field are truncated.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        zerocopy::transmute!(DreqWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            remote_qpn: join24(self.remote_qpn.value(), 0),
            private_data: self.private_data,
        })
    }
}

//! DREP: answer to a disconnect request.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, MESSAGE_BYTES};

/// Disconnect reply (InfiniBand volume 1, table 113).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drep {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// Private data of the consumer, padded with zeros.
    pub private_data: [u8; Self::PRIVATE_DATA_BYTES],
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct DrepWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    private_data: [u8; Drep::PRIVATE_DATA_BYTES],
}

const _: () = assert!(size_of::<DrepWire>() == MESSAGE_BYTES);

impl Drep {
    /// Length of the private data field in bytes.
    pub const PRIVATE_DATA_BYTES: usize = 224;

    /// Parses the message from its 232 bytes.
    pub fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let wire: &DrepWire = zerocopy::transmute_ref!(bytes);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            private_data: wire.private_data,
        }
    }

    /// Encodes the message into its 232 bytes.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        zerocopy::transmute!(DrepWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            private_data: self.private_data,
        })
    }
}

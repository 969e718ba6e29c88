//! MRA: the sender needs more time to answer a message.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, MESSAGE_BYTES, TimeoutExponent};

/// Message receipt acknowledgment (InfiniBand volume 1, table 107).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mra {
    /// The sender's communication id.
    pub local_comm_id: CommId,
    /// The receiver's communication id.
    pub remote_comm_id: CommId,
    /// The kind of message that was received.
    pub received: ReceivedMessage,
    /// How long the answer may take.
    pub service_timeout: TimeoutExponent,
    /// Private data of the consumer, padded with zeros.
    pub private_data: [u8; Self::PRIVATE_DATA_BYTES],
}

/// The kind of message that an MRA acknowledges, 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedMessage(pub u8);

impl ReceivedMessage {
    /// The REQ of the active side.
    pub const REQ: Self = Self(0);
    /// The REP of the passive side.
    pub const REP: Self = Self(1);
    /// The LAP of the active side.
    pub const LAP: Self = Self(2);
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct MraWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Message MRAed (2 bits), reserved (6).
    received: u8,
    /// Service time-out (5 bits), reserved (3).
    service_timeout: u8,
    private_data: [u8; Mra::PRIVATE_DATA_BYTES],
}

const _: () = assert!(size_of::<MraWire>() == MESSAGE_BYTES);

impl Mra {
    /// Length of the private data field in bytes.
    pub const PRIVATE_DATA_BYTES: usize = 222;

    /// Parses the message. Reserved bits are ignored.
    pub fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let wire: &MraWire = zerocopy::transmute_ref!(bytes);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            received: ReceivedMessage(wire.received >> 6),
            service_timeout: TimeoutExponent::saturating(wire.service_timeout >> 3),
            private_data: wire.private_data,
        }
    }

    /// Encodes the message into its 232 bytes.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        zerocopy::transmute!(MraWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            received: self.received.0 << 6,
            service_timeout: self.service_timeout.get() << 3,
            private_data: self.private_data,
        })
    }
}

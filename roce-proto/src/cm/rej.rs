//! REJ: either side refuses or withdraws a connection.

use core::fmt;

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, MESSAGE_BYTES};

/// Reject (InfiniBand volume 1, table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's communication id; zero if it has none.
    pub local_comm_id: CommId,
    /// The receiver's communication id; zero if the sender does not know it.
    pub remote_comm_id: CommId,
    /// The kind of message that is rejected.
    pub rejected: RejectedMessage,
    /// The reason; it determines the meaning of `info`.
    pub reason: RejectReason,
    /// Length of `info` in bytes, 0..=72.
    pub info_length: u8,
    /// Additional rejection information (ARI), whose meaning depends on the reason.
    pub info: [u8; Self::INFO_BYTES],
    /// Private data of the consumer, padded with zeros.
    pub private_data: [u8; Self::PRIVATE_DATA_BYTES],
}

/// The kind of message that a REJ rejects, 2 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectedMessage(pub u8);

impl RejectedMessage {
    /// The REQ of the active side.
    pub const REQ: Self = Self(0);
    /// The REP of the passive side.
    pub const REP: Self = Self(1);
    /// No message, or a message of another kind.
    pub const OTHER: Self = Self(2);
}

/// The reason of a REJ (volume 1, table 109).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RejectReason(pub u16);

macro_rules! reject_reasons {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl RejectReason {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }

        impl fmt::Display for RejectReason {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str($text),)*
                    Self(other) => write!(f, "reject reason {other}"),
                }
            }
        }
    };
}

reject_reasons! {
    /// The sender has no queue pair left.
    NO_QP = 1, "no queue pair available";
    /// The sender has no end-to-end context left.
    NO_EEC = 2, "no end-to-end context available";
    /// The sender has run out of another resource.
    NO_RESOURCES = 3, "no resources available";
    /// The sender got no answer within its timeout.
    TIMEOUT = 4, "time-out";
    /// The sender does not support what the REQ requires.
    UNSUPPORTED = 5, "unsupported request";
    /// The sender has no connection with this communication id.
    INVALID_COMM_ID = 6, "invalid communication id";
    /// The communication id is of another connection of the sender.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// No listener has the service id.
    INVALID_SERVICE_ID = 8, "invalid service id: it has no listener";
    /// The sender does not offer this transport service type for the service.
    INVALID_TRANSPORT_SERVICE = 9, "invalid transport service type";
    /// The sender has a connection with this queue pair, or it is in TimeWait.
    STALE_CONNECTION = 10, "stale connection";
    /// The primary remote port GID in the REQ is not accepted.
    INVALID_GID = 12, "invalid primary remote port GID";
    /// The path MTU is larger than the sender supports; the first byte of the information is the
    /// code of the largest that it supports.
    INVALID_PATH_MTU = 26, "invalid path MTU";
    /// The sender requires more responder resources.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The private data contains the reason.
    CONSUMER_DEFINED = 28, "rejected by the consumer";
    /// The RNR retry count is not acceptable.
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    /// The communication id is that of another connection.
    DUPLICATE_COMM_ID = 30, "duplicate local communication id";
    /// The class version of the message is not supported.
    INVALID_CLASS_VERSION = 31, "invalid class version";
    /// The flow label is not acceptable.
    INVALID_FLOW_LABEL = 32, "invalid primary flow label";
}

impl fmt::Debug for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({self})", self.0)
    }
}

#[repr(C)]
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
struct RejWire {
    local_comm_id: U32,
    remote_comm_id: U32,
    /// Message rejected (2 bits), reserved (6).
    rejected: u8,
    /// Rejected info length (7 bits), reserved (1).
    info_length: u8,
    reason: U16,
    info: [u8; Rej::INFO_BYTES],
    private_data: [u8; Rej::PRIVATE_DATA_BYTES],
}

const _: () = assert!(size_of::<RejWire>() == MESSAGE_BYTES);

impl Rej {
    /// Length of the private data field in bytes.
    pub const PRIVATE_DATA_BYTES: usize = 148;

    /// Length of the field for additional information in bytes.
    pub const INFO_BYTES: usize = 72;

    /// Parses the message. Reserved bits are ignored.
    pub fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Self {
        let wire: &RejWire = zerocopy::transmute_ref!(bytes);
        Self {
            local_comm_id: CommId(wire.local_comm_id.get()),
            remote_comm_id: CommId(wire.remote_comm_id.get()),
            rejected: RejectedMessage(wire.rejected >> 6),
            reason: RejectReason(wire.reason.get()),
            info_length: wire.info_length >> 1,
            info: wire.info,
            private_data: wire.private_data,
        }
    }

    /// Encodes the message into its 232 bytes.
    pub fn to_bytes(&self) -> [u8; MESSAGE_BYTES] {
        zerocopy::transmute!(RejWire {
            local_comm_id: U32::new(self.local_comm_id.0),
            remote_comm_id: U32::new(self.remote_comm_id.0),
            rejected: self.rejected.0 << 6,
            info_length: self.info_length << 1,
            reason: U16::new(self.reason.0),
            info: self.info,
            private_data: self.private_data,
        })
    }

    /// The additional information, limited to its stated length.
    pub fn info(&self) -> &[u8] {
        &self.info[..usize::from(self.info_length).min(Self::INFO_BYTES)]
    }
}

//! REJ: either side does not want the connection.

use core::fmt;

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{CommId, MESSAGE_BYTES};

/// Reject (InfiniBand volume 1, table 108).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rej {
    /// The sender's name for the connection; zero if it has none.
    pub local_comm_id: CommId,
    /// The receiver's name for the connection; zero if the sender never learnt it.
    pub remote_comm_id: CommId,
    /// The message that is rejected.
    pub rejected: RejectedMessage,
    /// Reason of the reject; it gives `info` its meaning.
    pub reason: RejectReason,
    /// Bytes of `info` that mean something, 0..=72.
    pub info_length: u8,
    /// Additional information, whose meaning depends on the reason.
    pub info: [u8; Self::INFO_BYTES],
    /// Private data of the consumer, padded with zeros.
    pub private_data: [u8; Self::PRIVATE_DATA_BYTES],
}

/// The message that a reject is about, 2 bits.
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

/// Reason of a reject (volume 1, table 109).
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
    /// The sender has run out of something else.
    NO_RESOURCES = 3, "no resources available";
    /// The sender timed out waiting for an answer.
    TIMEOUT = 4, "time-out";
    /// The request asks for an operation that the sender does not support.
    UNSUPPORTED = 5, "unsupported request";
    /// The message names a connection that the sender does not have.
    INVALID_COMM_ID = 6, "invalid communication id";
    /// The message names a connection, but not this one.
    INVALID_COMM_INSTANCE = 7, "invalid communication instance";
    /// No listener has the service id.
    INVALID_SERVICE_ID = 8, "invalid service id: it has no listener";
    /// Not a transport service that the sender offers there.
    INVALID_TRANSPORT_SERVICE = 9, "invalid transport service type";
    /// The queue pair is connected or in time-wait at the sender.
    STALE_CONNECTION = 10, "stale connection";
    /// The receiver's GID is not the sender's.
    INVALID_GID = 12, "invalid primary remote port GID";
    /// The path's payload is longer than the sender takes; the first byte of the information is the
    /// path MTU that it takes.
    INVALID_PATH_MTU = 26, "invalid path MTU";
    /// The sender wants more RDMA READs served.
    INSUFFICIENT_RESPONDER_RESOURCES = 27, "insufficient responder resources";
    /// The private data gives the reason.
    CONSUMER_DEFINED = 28, "rejected by the consumer";
    /// The RNR retry count is not acceptable.
    INVALID_RNR_RETRY = 29, "invalid RNR retry count";
    /// The communication id is that of another connection.
    DUPLICATE_COMM_ID = 30, "duplicate local communication id";
    /// Another version of the protocol.
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
    /// Room for private data, in bytes.
    pub const PRIVATE_DATA_BYTES: usize = 148;

    /// Room for additional information, in bytes.
    pub const INFO_BYTES: usize = 72;

    /// Takes the message apart. Reserved bits are ignored.
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

    /// The additional information, as far as its length says that it means something.
    pub fn info(&self) -> &[u8] {
        &self.info[..usize::from(self.info_length).min(Self::INFO_BYTES)]
    }
}

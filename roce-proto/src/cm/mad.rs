//! Management datagrams (MADs): 256 bytes, including a common header of 24.

use core::fmt;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a MAD in bytes.
pub const MAD_BYTES: usize = 256;

/// Length of a connection-management message, a MAD without its header, in bytes.
pub const MESSAGE_BYTES: usize = MAD_BYTES - size_of::<MadHeader>();

/// A whole MAD: the payload of a UD packet to queue pair 1.
pub type Mad = [u8; MAD_BYTES];

/// The common MAD header (InfiniBand volume 1, 13.4.2).
#[repr(C)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
pub(super) struct MadHeader {
    base_version: u8,
    management_class: u8,
    class_version: u8,
    method: u8,
    status: U16,
    class_specific: U16,
    transaction_id: U64,
    attribute_id: U16,
    reserved: U16,
    attribute_modifier: U32,
}

const _: () = assert!(size_of::<MadHeader>() == 24 && MESSAGE_BYTES == 232);

impl MadHeader {
    const BASE_VERSION: u8 = 1;
    /// Management class of the communication manager.
    const CLASS: u8 = 0x07;
    const CLASS_VERSION: u8 = 2;
    /// All messages of the communication manager use the method Send.
    const METHOD_SEND: u8 = 3;

    pub(super) fn new(attribute: Attribute, transaction_id: u64) -> Self {
        Self {
            base_version: Self::BASE_VERSION,
            management_class: Self::CLASS,
            class_version: Self::CLASS_VERSION,
            method: Self::METHOD_SEND,
            status: U16::ZERO,
            class_specific: U16::ZERO,
            transaction_id: U64::new(transaction_id),
            attribute_id: U16::new(attribute.0),
            reserved: U16::ZERO,
            attribute_modifier: U32::ZERO,
        }
    }

    /// Whether this is a MAD of the communication manager, in the supported version.
    pub(super) fn is_connection_management(&self) -> bool {
        self.base_version == Self::BASE_VERSION
            && self.management_class == Self::CLASS
            && self.class_version == Self::CLASS_VERSION
            && self.method == Self::METHOD_SEND
    }

    pub(super) fn attribute(&self) -> Attribute {
        Attribute(self.attribute_id.get())
    }

    pub(super) fn transaction_id(&self) -> u64 {
        self.transaction_id.get()
    }
}

/// The kind of sender of a MAD, encoded in the attribute modifier of its header. The communication
/// manager of the specification does not use this field: other implementations send zero and ignore
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sender {
    /// A sender that is not known to be Feedrail: it listens at UDP port 4791 and may send from any
    /// port.
    #[default]
    Unmarked,
    /// A Feedrail sender that listens at UDP port 4791.
    Feedrail,
    /// A Feedrail sender that listens at its UDP source port.
    FeedrailAtSource,
}

impl Sender {
    /// The bytes "Fed" in the upper 24 bits.
    const FEEDRAIL: u32 = 0x4665_6400;
    const FEEDRAIL_AT_SOURCE: u32 = Self::FEEDRAIL | 1;

    /// The kind of sender of a MAD.
    pub fn of(mad: &Mad) -> Self {
        match MadHeader::ref_from_prefix(mad).map(|(header, _)| header.attribute_modifier.get()) {
            Ok(Self::FEEDRAIL) => Self::Feedrail,
            Ok(Self::FEEDRAIL_AT_SOURCE) => Self::FeedrailAtSource,
            _ => Self::Unmarked,
        }
    }

    /// Whether the sender is Feedrail.
    pub const fn is_feedrail(self) -> bool {
        !matches!(self, Self::Unmarked)
    }

    pub(super) fn mark(self, mad: &mut Mad) {
        let modifier = match self {
            Self::Unmarked => 0,
            Self::Feedrail => Self::FEEDRAIL,
            Self::FeedrailAtSource => Self::FEEDRAIL_AT_SOURCE,
        };
        if let Ok((header, _)) = MadHeader::mut_from_prefix(mad) {
            header.attribute_modifier = U32::new(modifier);
        }
    }
}

/// The kind of a communication-manager message (volume 1, table 105).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attribute(pub u16);

impl Attribute {
    /// Request for communication: requests a connection.
    pub const REQ: Self = Self(0x10);
    /// Message receipt acknowledgment: the sender needs more time to answer.
    pub const MRA: Self = Self(0x11);
    /// Reject: the sender refuses or withdraws the connection.
    pub const REJ: Self = Self(0x12);
    /// Reply to a REQ: accepts the connection.
    pub const REP: Self = Self(0x13);
    /// Ready to use: the active side has connected its queue pair.
    pub const RTU: Self = Self(0x14);
    /// Disconnect request of either side.
    pub const DREQ: Self = Self(0x15);
    /// Disconnect reply: the answer to a DREQ.
    pub const DREP: Self = Self(0x16);
    /// Service id resolution request.
    pub const SIDR_REQ: Self = Self(0x17);
    /// Service id resolution response.
    pub const SIDR_REP: Self = Self(0x18);
    /// Load alternate path; not supported by this crate.
    pub const LAP: Self = Self(0x19);
    /// Alternate path response, the answer to a LAP.
    pub const APR: Self = Self(0x1A);
}

impl fmt::Debug for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Self::REQ => "REQ",
            Self::MRA => "MRA",
            Self::REJ => "REJ",
            Self::REP => "REP",
            Self::RTU => "RTU",
            Self::DREQ => "DREQ",
            Self::DREP => "DREP",
            Self::SIDR_REQ => "SIDR_REQ",
            Self::SIDR_REP => "SIDR_REP",
            Self::LAP => "LAP",
            Self::APR => "APR",
            Self(other) => return write!(f, "attribute {other:#06x}"),
        })
    }
}

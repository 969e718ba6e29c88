//! Connection-management messages of all kinds.

use zerocopy::IntoBytes;

use super::mad::MadHeader;
use super::{Attribute, Drep, Dreq, MESSAGE_BYTES, Mad, Mra, Rej, Rep, Req, Rtu};

/// The message in a MAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementMessage {
    /// Request for communication, sent by the active side.
    Req(Req),
    /// Message receipt acknowledgment, sent by either side.
    Mra(Mra),
    /// Reject, sent by either side.
    Rej(Rej),
    /// Reply to a REQ, sent by the passive side.
    Rep(Rep),
    /// Ready to use, sent by the active side.
    Rtu(Rtu),
    /// Disconnect request, sent by either side.
    Dreq(Dreq),
    /// Disconnect reply: the answer to a DREQ.
    Drep(Drep),
}

/// The reason why a MAD does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// The management class, version or method is not that of the communication manager.
    #[error("not a datagram of the communication manager")]
    NotConnectionManagement,
    /// The message is not supported by this crate, for instance LAP or SIDR REQ.
    #[error("unsupported message: {0:?}")]
    UnsupportedAttribute(Attribute),
}

impl ManagementMessage {
    /// Parses a MAD; returns its transaction id, which the answer repeats, and the message.
    ///
    /// # Errors
    /// The MAD is none of these messages. `declined.rs` answers some of the others.
    pub fn parse(mad: &Mad) -> Result<(u64, Self), MadError> {
        let (header, body): (&MadHeader, &[u8; MESSAGE_BYTES]) = split(mad);
        if !header.is_connection_management() {
            return Err(MadError::NotConnectionManagement);
        }
        let message = match header.attribute() {
            Attribute::REQ => Self::Req(Req::parse(body)),
            Attribute::MRA => Self::Mra(Mra::parse(body)),
            Attribute::REJ => Self::Rej(Rej::parse(body)),
            Attribute::REP => Self::Rep(Rep::parse(body)),
            Attribute::RTU => Self::Rtu(Rtu::parse(body)),
            Attribute::DREQ => Self::Dreq(Dreq::parse(body)),
            Attribute::DREP => Self::Drep(Drep::parse(body)),
            other => return Err(MadError::UnsupportedAttribute(other)),
        };
        Ok((header.transaction_id(), message))
    }

    /// Encodes the message into a MAD.
    pub fn to_mad(&self, transaction_id: u64) -> Mad {
        let header = MadHeader::new(self.attribute(), transaction_id);
        let mut mad = [0; super::MAD_BYTES];
        let (head, body) = mad.split_at_mut(size_of::<MadHeader>());
        head.copy_from_slice(header.as_bytes());
        body.copy_from_slice(&self.body());
        mad
    }

    /// The kind of the message.
    pub fn attribute(&self) -> Attribute {
        match self {
            Self::Req(_) => Attribute::REQ,
            Self::Mra(_) => Attribute::MRA,
            Self::Rej(_) => Attribute::REJ,
            Self::Rep(_) => Attribute::REP,
            Self::Rtu(_) => Attribute::RTU,
            Self::Dreq(_) => Attribute::DREQ,
            Self::Drep(_) => Attribute::DREP,
        }
    }

    fn body(&self) -> [u8; MESSAGE_BYTES] {
        match self {
            Self::Req(message) => message.to_bytes(),
            Self::Mra(message) => message.to_bytes(),
            Self::Rej(message) => message.to_bytes(),
            Self::Rep(message) => message.to_bytes(),
            Self::Rtu(message) => message.to_bytes(),
            Self::Dreq(message) => message.to_bytes(),
            Self::Drep(message) => message.to_bytes(),
        }
    }
}

fn split(mad: &Mad) -> (&MadHeader, &[u8; MESSAGE_BYTES]) {
    #[repr(C)]
    #[derive(
        zerocopy::FromBytes, zerocopy::KnownLayout, zerocopy::Immutable, zerocopy::Unaligned,
    )]
    struct Wire {
        header: MadHeader,
        body: [u8; MESSAGE_BYTES],
    }
    let wire: &Wire = zerocopy::transmute_ref!(mad);
    (&wire.header, &wire.body)
}

//! A connection-management message of any kind.

use zerocopy::IntoBytes;

use super::mad::MadHeader;
use super::{Attribute, Drep, Dreq, MESSAGE_BYTES, Mad, Mra, Rej, Rep, Req, Rtu};

/// The message of a management datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementMessage {
    /// Request for communication, from the active side.
    Req(Req),
    /// Message receipt acknowledgement, from either side.
    Mra(Mra),
    /// Reject, from either side.
    Rej(Rej),
    /// Reply to a request.
    Rep(Rep),
    /// Ready to use, from the active side.
    Rtu(Rtu),
    /// Disconnect request, from either side.
    Dreq(Dreq),
    /// Disconnect reply: the answer to a DREQ.
    Drep(Drep),
}

/// The reason for which a management datagram is not parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MadError {
    /// Another management class, version or method.
    #[error("not a datagram of the communication manager")]
    NotConnectionManagement,
    /// A message that this crate does not support: alternate paths, service id resolution.
    #[error("unsupported message: {0:?}")]
    UnsupportedAttribute(Attribute),
}

impl ManagementMessage {
    /// Takes a datagram apart; also gives its transaction id, which the answer repeats.
    ///
    /// # Errors
    /// It is none of these messages. Few others are answered (`declined.rs`).
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

    /// The datagram that carries it.
    pub fn to_mad(&self, transaction_id: u64) -> Mad {
        let header = MadHeader::new(self.attribute(), transaction_id);
        let mut mad = [0; super::MAD_BYTES];
        let (head, body) = mad.split_at_mut(size_of::<MadHeader>());
        head.copy_from_slice(header.as_bytes());
        body.copy_from_slice(&self.body());
        mad
    }

    /// Which message it is.
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

/// Header and message of a datagram.
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

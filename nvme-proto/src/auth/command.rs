//! Authentication Send and Authentication Receive.

use zerocopy::little_endian::U32;

use crate::{DataTransfer, FabricsType, Sqe, Status};

/// Security protocol, SECP, that SPC-5 assigns to NVMe.
const SECURITY_PROTOCOL: u8 = 0xE9;
/// SPSP0 and SPSP1: the messages identify themselves.
const SPECIFIC: u8 = 0x01;

/// Authentication Send (Base, 6.2): transfers a message to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticationSend {
    /// Length of the message in bytes, TL; not 0.
    pub length_bytes: u32,
}

impl AuthenticationSend {
    /// Decodes command dwords 10 and 11; opcode and FCTYPE are not checked.
    ///
    /// # Errors
    /// Invalid Field in Command, with Do Not Retry, for another security protocol or a length of 0.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        length(sqe).map(|length_bytes| Self { length_bytes })
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        encode(FabricsType::AUTHENTICATION_SEND, self.length_bytes)
    }

    /// Direction and length of the data.
    pub const fn transfer(&self) -> DataTransfer {
        DataTransfer::from_host(self.length_bytes as u64)
    }
}

/// Authentication Receive (Base, 6.1): transfers a message to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthenticationReceive {
    /// Length in bytes of the memory for the message, AL; not 0.
    pub length_bytes: u32,
}

impl AuthenticationReceive {
    /// Decodes command dwords 10 and 11; opcode and FCTYPE are not checked.
    ///
    /// # Errors
    /// Invalid Field in Command, with Do Not Retry, for another security protocol or a length of 0.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        length(sqe).map(|length_bytes| Self { length_bytes })
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        encode(FabricsType::AUTHENTICATION_RECEIVE, self.length_bytes)
    }

    /// Direction and length of the data.
    pub const fn transfer(&self) -> DataTransfer {
        DataTransfer::to_host(self.length_bytes as u64)
    }
}

fn length(sqe: &Sqe) -> Result<u32, Status> {
    let [_, spsp0, spsp1, secp] = sqe.cdw10.get().to_le_bytes();
    match sqe.cdw11.get() {
        0 => Err(Status::INVALID_FIELD.with_dnr()),
        length if (secp, spsp0, spsp1) == (SECURITY_PROTOCOL, SPECIFIC, SPECIFIC) => Ok(length),
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}

fn encode(fctype: FabricsType, length_bytes: u32) -> Sqe {
    let mut sqe = Sqe::fabrics(fctype);
    sqe.cdw10 = U32::from_bytes([0, SPECIFIC, SPECIFIC, SECURITY_PROTOCOL]);
    sqe.cdw11 = U32::new(length_bytes);
    sqe
}

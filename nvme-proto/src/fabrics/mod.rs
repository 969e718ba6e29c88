//! Fabrics commands (Base, 6).

mod connect;
mod property;

use bitfield_struct::bitfield;

pub use connect::{
    Connect, ConnectAttributes, ConnectData, ConnectLayer, ConnectParameter, ConnectResponse,
};
pub use property::{PropertyGet, PropertySet, PropertySize};

use crate::auth::{AuthenticationReceive, AuthenticationSend};
use crate::{DataTransfer, FabricsType, Sqe, Status, U32};

/// Fabrics command. Property Get and Property Set are for the admin queue only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricsCommand {
    /// Assigns the connection to a queue of a controller.
    Connect(Connect),
    /// Reads a controller property.
    PropertyGet(PropertyGet),
    /// Writes a controller property.
    PropertySet(PropertySet),
    /// Deletes the I/O queue that it is received on.
    Disconnect(Disconnect),
    /// Transfers an authentication message to the controller.
    AuthenticationSend(AuthenticationSend),
    /// Transfers an authentication message to the host.
    AuthenticationReceive(AuthenticationReceive),
}

impl FabricsCommand {
    /// Decodes a submission queue entry with the fabrics opcode.
    ///
    /// # Errors
    /// All with Do Not Retry: Invalid Command Opcode for another opcode or an unknown FCTYPE, else
    /// the status that decoding the command returns.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        match sqe.fabrics_type() {
            _ if !sqe.is_fabrics() => Err(Status::INVALID_OPCODE.with_dnr()),
            FabricsType::CONNECT => Connect::parse(sqe).map(Self::Connect),
            FabricsType::PROPERTY_GET => PropertyGet::parse(sqe).map(Self::PropertyGet),
            FabricsType::PROPERTY_SET => PropertySet::parse(sqe).map(Self::PropertySet),
            FabricsType::DISCONNECT => Disconnect::parse(sqe).map(Self::Disconnect),
            FabricsType::AUTHENTICATION_SEND => {
                AuthenticationSend::parse(sqe).map(Self::AuthenticationSend)
            }
            FabricsType::AUTHENTICATION_RECEIVE => {
                AuthenticationReceive::parse(sqe).map(Self::AuthenticationReceive)
            }
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        match self {
            Self::Connect(command) => command.to_sqe(),
            Self::PropertyGet(command) => command.to_sqe(),
            Self::PropertySet(command) => command.to_sqe(),
            Self::Disconnect(command) => command.to_sqe(),
            Self::AuthenticationSend(command) => command.to_sqe(),
            Self::AuthenticationReceive(command) => command.to_sqe(),
        }
    }

    /// Fabrics command type, FCTYPE, which is byte 4 of the entry.
    pub const fn fabrics_type(&self) -> FabricsType {
        match self {
            Self::Connect(_) => FabricsType::CONNECT,
            Self::PropertyGet(_) => FabricsType::PROPERTY_GET,
            Self::PropertySet(_) => FabricsType::PROPERTY_SET,
            Self::Disconnect(_) => FabricsType::DISCONNECT,
            Self::AuthenticationSend(_) => FabricsType::AUTHENTICATION_SEND,
            Self::AuthenticationReceive(_) => FabricsType::AUTHENTICATION_RECEIVE,
        }
    }

    /// Direction and length of the data that the command transfers.
    pub const fn transfer(&self) -> DataTransfer {
        match self {
            Self::Connect(_) => DataTransfer::from_host(ConnectData::BYTES as u64),
            Self::AuthenticationSend(command) => command.transfer(),
            Self::AuthenticationReceive(command) => command.transfer(),
            Self::PropertyGet(_) | Self::PropertySet(_) | Self::Disconnect(_) => DataTransfer::NONE,
        }
    }
}

/// Disconnect (Base, 6.4): deletes the I/O queue that it is received on. The controller has to
/// refuse it on the admin queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disconnect;

impl Disconnect {
    /// Decodes command dword 10, which holds the record format; the opcode is not checked.
    ///
    /// # Errors
    /// Connect Incompatible Format, with Do Not Retry, for a record format other than 0.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        if RecordFormat::of(sqe).recfmt() == 0 {
            Ok(Self)
        } else {
            Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr())
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        Sqe::fabrics(FabricsType::DISCONNECT)
    }
}

/// Command dword 10 of Connect and Disconnect.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct RecordFormat {
    recfmt: u16,
    /// Queue identifier of Connect; reserved in Disconnect.
    qid: u16,
}

impl RecordFormat {
    fn of(sqe: &Sqe) -> Self {
        Self::from_bits(sqe.cdw10.get())
    }

    fn to_dword(self) -> U32 {
        U32::new(self.into_bits())
    }
}

//! Fabrics commands (Base, 6).

mod connect;
mod property;

use bitfield_struct::bitfield;

pub use connect::{
    Connect, ConnectAttributes, ConnectData, ConnectLayer, ConnectParameter, ConnectResponse,
};
pub use property::{PropertyGet, PropertySet, PropertySize};

use crate::{DataDirection, DataTransfer, FabricsType, Sqe, Status, U32};

/// A fabrics command. All but Property Get and Set may come on any queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FabricsCommand {
    /// Make this connection a queue of a controller.
    Connect(Connect),
    /// Read a controller property.
    PropertyGet(PropertyGet),
    /// Write a controller property.
    PropertySet(PropertySet),
    /// Delete this I/O queue.
    Disconnect(Disconnect),
}

impl FabricsCommand {
    /// Gives an entry with the fabrics opcode its meaning.
    ///
    /// # Errors
    /// With Do Not Retry: Invalid Command Opcode for an unknown type, else what the command's own
    /// parsing says.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        match sqe.fabrics_type() {
            _ if !sqe.is_fabrics() => Err(Status::INVALID_OPCODE.with_dnr()),
            FabricsType::CONNECT => Connect::parse(sqe).map(Self::Connect),
            FabricsType::PROPERTY_GET => PropertyGet::parse(sqe).map(Self::PropertyGet),
            FabricsType::PROPERTY_SET => PropertySet::parse(sqe).map(Self::PropertySet),
            FabricsType::DISCONNECT => Disconnect::parse(sqe).map(Self::Disconnect),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// The entry that says so.
    pub fn to_sqe(&self) -> Sqe {
        match self {
            Self::Connect(command) => command.to_sqe(),
            Self::PropertyGet(command) => command.to_sqe(),
            Self::PropertySet(command) => command.to_sqe(),
            Self::Disconnect(command) => command.to_sqe(),
        }
    }

    /// Its type.
    pub const fn fabrics_type(&self) -> FabricsType {
        match self {
            Self::Connect(_) => FabricsType::CONNECT,
            Self::PropertyGet(_) => FabricsType::PROPERTY_GET,
            Self::PropertySet(_) => FabricsType::PROPERTY_SET,
            Self::Disconnect(_) => FabricsType::DISCONNECT,
        }
    }

    /// The data that it moves.
    pub const fn transfer(&self) -> DataTransfer {
        match self {
            Self::Connect(_) => DataTransfer {
                direction: DataDirection::HostToController,
                length_bytes: ConnectData::BYTES as u64,
            },
            _ => DataTransfer::NONE,
        }
    }
}

/// Disconnect (Base, 6.4): deletes the I/O queue that it comes on. On the admin queue it is
/// refused, which is the controller's part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disconnect;

impl Disconnect {
    /// Parses the entry.
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

    /// The entry that says so.
    pub fn to_sqe(&self) -> Sqe {
        Sqe::fabrics(FabricsType::DISCONNECT)
    }
}

/// Command dword 10 of Connect and Disconnect.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct RecordFormat {
    recfmt: u16,
    /// Connect only.
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

//! Error Information log page, identifier 01h.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Csi, Reserved, Status};

/// One entry of the error log (Base, 5.1.12.1.2), newest first. An entry with count 0 is not in
/// use.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// Unique count of this error.
    pub error_count: U64,
    /// Submission queue of the command.
    pub sqid: U16,
    /// Identifier of the command.
    pub cid: U16,
    status: U16,
    /// Location of the error in the command: byte in bits 7:0, bit in bits 10:8; FFFFh if it has
    /// none.
    pub parameter_location: U16,
    /// First block with the error.
    pub lba: U64,
    /// Namespace that the error concerns, if any.
    pub nsid: U32,
    /// Log page with vendor specific information, or 0.
    pub vendor_page: u8,
    /// Transport type, or 0.
    pub trtype: u8,
    /// Command set of the command.
    pub csi: Csi,
    /// Opcode of the command.
    pub opcode: u8,
    /// Information that the definition of the command gives a meaning.
    pub command_specific: U64,
    /// Information that the transport type gives a meaning.
    pub transport_specific: U16,
    reserved_42: Reserved<21>,
    /// Version of the entry.
    pub version: u8,
}

const _: () = assert!(size_of::<ErrorLogEntry>() == 64);

impl ErrorLogEntry {
    /// Parameter location of an error that has none in the command.
    pub const NO_LOCATION: U16 = U16::new(0xFFFF);

    /// Status of the command.
    pub const fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// Sets the status of the command.
    pub fn set_status(&mut self, status: Status) {
        self.status = U16::new(status.to_wire());
    }
}

//! Error Information log page, identifier 01h.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Csi, Reserved, Status};

/// Error Information Log Entry (Base, 5.1.12.1.2). The page has the newest entry first; an entry
/// with Error Count 0 is unused.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// Number of this error, ascending from 1; 0 for an unused entry.
    pub error_count: U64,
    /// Submission queue of the command.
    pub sqid: U16,
    /// Identifier of the command.
    pub cid: U16,
    status: U16,
    /// Parameter error location in the command: byte in bits 7:0, bit in bits 10:8; FFFFh if the
    /// error is not specific to a parameter.
    pub parameter_location: U16,
    /// First logical block with the error.
    pub lba: U64,
    /// Namespace that the error concerns, if any.
    pub nsid: U32,
    /// Identifier of a log page with vendor specific information; 0 without one.
    pub vendor_page: u8,
    /// Transport type (TRTYPE) of the connection; 0 if not reported.
    pub trtype: u8,
    /// Command set of the command.
    pub csi: Csi,
    /// Opcode of the command.
    pub opcode: u8,
    /// Command Specific Information of the entry.
    pub command_specific: U64,
    /// Transport type specific information.
    pub transport_specific: U16,
    reserved_42: Reserved<21>,
    /// Version of the entry.
    pub version: u8,
}

const _: () = assert!(size_of::<ErrorLogEntry>() == 64);

impl ErrorLogEntry {
    /// `parameter_location` of an error that is not specific to a parameter.
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

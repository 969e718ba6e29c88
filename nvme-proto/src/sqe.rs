//! Submission queue entries, 64 bytes each.

use core::fmt;

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Cid, FABRICS_OPCODE, FabricsType, Nsid, SglDescriptor, Status};

/// Submission queue entry: the first 64 bytes of a command capsule (Base, 4.1).
///
/// The fields are those common to all commands; [`crate::Command::parse`] decodes `cdw10` to
/// `cdw15`. A fabrics command has FCTYPE in place of the NSID.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sqe {
    /// Opcode, whose command set depends on the queue.
    pub opcode: u8,
    /// Fused operation, and whether the data pointer is a PRP or an SGL.
    pub flags: SqeFlags,
    /// Command identifier, unique among the commands in flight on the queue.
    pub cid: U16,
    /// Namespace identifier; for a fabrics command, byte 0 is FCTYPE.
    pub nsid: U32,
    /// Command dword 2, bytes 8 to 11.
    pub cdw2: U32,
    /// Command dword 3, bytes 12 to 15.
    pub cdw3: U32,
    /// Metadata pointer, bytes 16 to 23; unused without metadata.
    pub mptr: U64,
    /// Data pointer: over fabrics always one SGL descriptor.
    pub dptr: SglDescriptor,
    /// Command dword 10, bytes 40 to 43.
    pub cdw10: U32,
    /// Command dword 11, bytes 44 to 47.
    pub cdw11: U32,
    /// Command dword 12, bytes 48 to 51.
    pub cdw12: U32,
    /// Command dword 13, bytes 52 to 55.
    pub cdw13: U32,
    /// Command dword 14, bytes 56 to 59.
    pub cdw14: U32,
    /// Command dword 15, bytes 60 to 63.
    pub cdw15: U32,
}

const _: () = assert!(size_of::<Sqe>() == 64);

impl Sqe {
    /// Creates an entry with command identifier 0, NSID 0, no data, and SGLs, which fabrics
    /// require.
    pub const fn new(opcode: u8) -> Self {
        Self {
            opcode,
            flags: SqeFlags::new().with_psdt(Psdt::SGL),
            cid: U16::ZERO,
            nsid: U32::ZERO,
            cdw2: U32::ZERO,
            cdw3: U32::ZERO,
            mptr: U64::ZERO,
            dptr: SglDescriptor::NO_DATA,
            cdw10: U32::ZERO,
            cdw11: U32::ZERO,
            cdw12: U32::ZERO,
            cdw13: U32::ZERO,
            cdw14: U32::ZERO,
            cdw15: U32::ZERO,
        }
    }

    /// Creates an entry as [`Sqe::new`] does, with the fabrics opcode and type `fctype`.
    pub const fn fabrics(fctype: FabricsType) -> Self {
        let mut sqe = Self::new(FABRICS_OPCODE);
        sqe.nsid = U32::new(fctype.0 as u32);
        sqe
    }

    /// Sets the command identifier.
    pub const fn with_cid(mut self, cid: Cid) -> Self {
        self.cid = U16::new(cid.0);
        self
    }

    /// Sets the namespace identifier.
    pub const fn with_nsid(mut self, nsid: Nsid) -> Self {
        self.nsid = U32::new(nsid.0);
        self
    }

    /// Sets the data pointer.
    pub fn with_data(mut self, data: impl Into<SglDescriptor>) -> Self {
        self.dptr = data.into();
        self
    }

    /// Command identifier, which the completion repeats.
    pub const fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// Namespace identifier; without meaning for a fabrics command.
    pub const fn nsid(&self) -> Nsid {
        Nsid(self.nsid.get())
    }

    /// Whether it is a fabrics command.
    pub const fn is_fabrics(&self) -> bool {
        self.opcode == FABRICS_OPCODE
    }

    /// Fabrics command type, byte 4; without meaning for another command.
    pub const fn fabrics_type(&self) -> FabricsType {
        FabricsType(self.nsid.get() as u8)
    }

    /// Checks the flags for use over fabrics: SGLs, and no fused operation, which Feedrail
    /// controllers do not support.
    ///
    /// # Errors
    /// Invalid Field in Command, with Do Not Retry.
    #[inline]
    pub fn check_flags(&self) -> Result<(), Status> {
        if self.flags.psdt() == Psdt::SGL && self.flags.fuse() == 0 {
            Ok(())
        } else {
            Err(Status::INVALID_FIELD.with_dnr())
        }
    }
}

impl fmt::Debug for Sqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqe {{ opcode {:#04x}, cid {}, ", self.opcode, self.cid())?;
        if self.is_fabrics() {
            write!(f, "{}", self.fabrics_type())?;
        } else {
            write!(f, "nsid {}", self.nsid())?;
        }
        let [a, b, c, d, e, g] =
            [self.cdw10, self.cdw11, self.cdw12, self.cdw13, self.cdw14, self.cdw15].map(U32::get);
        write!(f, ", data {:?}, cdw10.. {a:#x} {b:#x} {c:#x} {d:#x} {e:#x} {g:#x} }}", self.dptr)
    }
}

/// Byte 1 of an entry.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct SqeFlags {
    /// Fused operation; 0 for an ordinary command.
    #[bits(2)]
    pub fuse: u8,
    #[bits(4)]
    __: u8,
    /// Format of the data pointer.
    #[bits(2)]
    pub psdt: Psdt,
}

open_enum! {
    /// Format of the data pointer, PSDT: bits 7:6 of the flags.
    pub struct Psdt(u8) {
        PRP = 0b00, "PRP";
        SGL = 0b01, "SGL, metadata pointer is an address";
        SGL_METADATA_SGL = 0b10, "SGL, metadata pointer is an SGL";
    }
}

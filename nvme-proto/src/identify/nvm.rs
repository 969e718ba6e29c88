//! Identify structures that are specific to the NVM command set, CNS 05h and 06h.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Reserved;
use crate::registers::Version;

/// I/O Command Set specific Identify Namespace of the NVM command set, CNS 05h with CSI 00h (NVM,
/// 4.1.5). All bytes are zero without protection information and preferred sizes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespaceNvm {
    /// Logical block storage tag mask.
    pub lbstm: U64,
    /// Protection information capabilities; 0 without protection information.
    pub pic: u8,
    /// Protection information format attributes.
    pub pifa: u8,
    reserved_10: Reserved<2>,
    /// Extended LBA formats, one for each LBA format of Identify Namespace.
    pub elbaf: [U32; 64],
    /// Preferred deallocate granularity in blocks.
    pub npdgl: U32,
    /// Preferred read granularity in blocks.
    pub nprg: U32,
    /// Preferred read alignment in blocks.
    pub npra: U32,
    /// Optimal read size in blocks.
    pub nors: U32,
    /// Preferred deallocate alignment in blocks.
    pub npdal: U32,
    reserved_288: Reserved<3808>,
}

const _: () = assert!(size_of::<IdentifyNamespaceNvm>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespaceNvm, npdgl) == 268);

/// I/O Command Set specific Identify Controller of the NVM command set, CNS 06h with CSI 00h (NVM,
/// 4.1.5). 0 means that no limit is reported.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyControllerNvm {
    /// Verify size limit, a power of two in units of the minimum memory page size.
    pub vsl: u8,
    /// Write Zeroes size limit, in the same unit.
    pub wzsl: u8,
    /// Write Uncorrectable size limit, in the same unit.
    pub wusl: u8,
    /// Dataset Management: most ranges in a command.
    pub dmrl: u8,
    /// Dataset Management: most blocks in a range.
    pub dmrsl: U32,
    /// Dataset Management: most blocks in a command.
    pub dmsl: U64,
    /// Key per I/O capabilities.
    pub kpiocap: u8,
    /// Write Zeroes with Deallocate size limit, in units of the minimum memory page size.
    pub wzdsl: u8,
    /// Admin optional command support.
    pub aocs: U16,
    /// Version of the NVM command set specification.
    pub ver: Version,
    reserved_24: Reserved<4072>,
}

const _: () = assert!(size_of::<IdentifyControllerNvm>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyControllerNvm, ver) == 20);

//! Identify Namespace, CNS 00h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U64, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::FileInfo;
use super::file_info::AREA_BYTES;
use crate::{LbaFormat, Reserved};

/// Identify Namespace of the NVM command set (NVM, 4.1.5.1). Field names are the specification's
/// abbreviations. For an inactive NSID, all bytes are zero.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespace {
    /// Size in logical blocks: the highest LBA plus 1.
    pub nsze: U64,
    /// Capacity: the most logical blocks that can be allocated at a time.
    pub ncap: U64,
    /// Utilization: logical blocks that are allocated now.
    pub nuse: U64,
    /// Features: thin provisioning, and which optional fields are valid.
    pub nsfeat: Nsfeat,
    /// Number of LBA formats, zero-based.
    pub nlbaf_z: u8,
    /// LBA format in use.
    pub flbas: Flbas,
    /// Metadata capabilities; bit 0: at the end of each block, bit 1: in a separate buffer.
    pub mc: u8,
    /// End-to-end data protection capabilities.
    pub dpc: u8,
    /// End-to-end data protection settings.
    pub dps: u8,
    /// Multi-path and sharing capabilities.
    pub nmic: Nmic,
    /// Reservation capabilities; 0 if the namespace does not support reservations.
    pub rescap: u8,
    /// Format progress indicator; bit 7: supported, bits 6:0: percentage left to format.
    pub fpi: u8,
    /// Deallocate features: what a read of deallocated blocks returns.
    pub dlfeat: Dlfeat,
    /// Atomic write unit normal in blocks, zero-based.
    pub nawun_z: U16,
    /// Atomic write unit power fail in blocks, zero-based.
    pub nawupf_z: U16,
    /// Atomic compare and write unit in blocks, zero-based.
    pub nacwu_z: U16,
    /// Atomic boundary size normal in blocks, zero-based.
    pub nabsn_z: U16,
    /// Atomic boundary offset in blocks.
    pub nabo: U16,
    /// Atomic boundary size power fail in blocks, zero-based.
    pub nabspf_z: U16,
    /// Optimal I/O boundary in blocks.
    pub noiob: U16,
    /// NVM capacity in bytes.
    pub nvmcap: U128,
    /// Preferred write granularity in blocks, zero-based.
    pub npwg_z: U16,
    /// Preferred write alignment in blocks, zero-based.
    pub npwa_z: U16,
    /// Preferred deallocate granularity in blocks, zero-based.
    pub npdg_z: U16,
    /// Preferred deallocate alignment in blocks, zero-based.
    pub npda_z: U16,
    /// Optimal write size in blocks, zero-based.
    pub nows_z: U16,
    /// Maximum single source range length of Copy, in blocks.
    pub mssrl: U16,
    /// Maximum copy length in blocks.
    pub mcl: U32,
    /// Maximum source range count of Copy, zero-based.
    pub msrc_z: u8,
    reserved_81: Reserved<11>,
    /// ANA group of the namespace; 0 without ANA reporting.
    pub anagrpid: U32,
    reserved_96: Reserved<3>,
    /// Attributes: whether the namespace is write protected.
    pub nsattr: Nsattr,
    /// NVM set of the namespace; 0 where NVM sets are not supported.
    pub nvmsetid: U16,
    /// Endurance group of the namespace; 0 where endurance groups are not supported.
    pub endgid: U16,
    /// Namespace globally unique identifier.
    pub nguid: [u8; 16],
    /// IEEE extended unique identifier.
    pub eui64: [u8; 8],
    /// LBA formats; the first `nlbaf_z` + 1 are in use.
    pub lbaf: [LbaFormat; 64],
    /// Vendor specific: see [`FileInfo`].
    pub vendor: VendorArea,
}

const _: () = assert!(size_of::<IdentifyNamespace>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, anagrpid) == 92);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, nguid) == 104);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, lbaf) == 128);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespace, vendor) == 384);

impl IdentifyNamespace {
    /// Returns the LBA formats that the namespace supports.
    pub fn lba_formats(&self) -> &[LbaFormat] {
        let count = usize::from(self.nlbaf_z) + 1;
        &self.lbaf[..count.min(self.lbaf.len())]
    }

    /// Index of the LBA format in use, which may be beyond [`IdentifyNamespace::lba_formats`] in
    /// wrong data.
    pub fn lba_format_index(&self) -> usize {
        // The high bits are valid only if there are more than 16 formats.
        usize::from(match self.nlbaf_z {
            0..16 => self.flbas.index_low(),
            _ => self.flbas.index_high() << 4 | self.flbas.index_low(),
        })
    }

    /// Returns the LBA format in use; `None` if its index is beyond the supported formats.
    pub fn lba_format(&self) -> Option<LbaFormat> {
        self.lba_formats().get(self.lba_format_index()).copied()
    }

    /// Returns the file behind the namespace as a Feedrail target reports it; `None` if another
    /// target or a damaged record has been read.
    pub fn file_info(&self) -> Option<FileInfo<'_>> {
        FileInfo::parse(self.vendor.as_bytes())
    }

    /// Sets the record that [`IdentifyNamespace::file_info`] returns.
    pub fn set_file_info(&mut self, info: &FileInfo<'_>) {
        self.vendor = VendorArea(info.to_bytes());
    }
}

/// Vendor-specific bytes 384 to 4095 of Identify Namespace.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct VendorArea([u8; AREA_BYTES]);

impl core::fmt::Debug for VendorArea {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match FileInfo::parse(&self.0) {
            Some(info) => info.fmt(f),
            None if self.0.iter().all(|&byte| byte == 0) => f.write_str("zeros"),
            None => f.write_str("foreign"),
        }
    }
}

/// Namespace features, NSFEAT: byte 24 of Identify Namespace.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nsfeat {
    /// Bit 0: thin provisioning; the capacity may be less than the size.
    pub thin: bool,
    /// Bit 1: the atomic write fields of the namespace are valid, in place of the controller's.
    pub atomic_fields: bool,
    /// Bit 2: reading a deallocated or unwritten block can be made an error.
    pub deallocated_error: bool,
    /// Bit 3: NGUID and EUI64 are never reused.
    pub uid_reuse: bool,
    /// Bits 5:4: which optimal performance fields are valid; 1: NPWG, NPWA, NPDG, NPDA and NOWS.
    #[bits(2)]
    pub optimal_fields: u8,
    #[bits(2)]
    __: u8,
}

/// Formatted LBA size, FLBAS.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Flbas {
    /// Low four bits of the format's index.
    #[bits(4)]
    pub index_low: u8,
    /// Metadata is transferred at the end of the data of each block.
    pub extended: bool,
    /// Bits 5:4 of the format's index.
    #[bits(2)]
    pub index_high: u8,
    __: bool,
}

/// Namespace multi-path and sharing capabilities, NMIC.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nmic {
    /// The namespace may be attached to several controllers at a time.
    pub shared: bool,
    /// The namespace may be attached to controllers of several subsystems (dispersed namespace).
    pub dispersed: bool,
    #[bits(6)]
    __: u8,
}

/// Deallocate features, DLFEAT: byte 33 of Identify Namespace.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Dlfeat {
    /// Bits 2:0: bytes that a read of a deallocated block returns: 0 not reported, 1 00h, 2 FFh.
    #[bits(3)]
    pub read_behavior: u8,
    /// Write Zeroes supports the Deallocate bit.
    pub write_zeroes_deallocates: bool,
    /// The guard field of a deallocated block is the CRC of its data; if clear, FFFFh.
    pub guard_crc: bool,
    #[bits(3)]
    __: u8,
}

/// Namespace attributes, NSATTR: byte 99 of Identify Namespace, byte 8 of the independent
/// structure.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nsattr {
    /// Bit 0: the namespace is write protected now, for whatever reason.
    pub write_protected: bool,
    #[bits(7)]
    __: u8,
}

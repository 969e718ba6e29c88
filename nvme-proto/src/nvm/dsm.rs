//! The Dataset Management command and its ranges.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Nsid, NvmOpcode, Sqe, Status};

/// Dataset Management command (NVM, 3). Its data is a list of [`DsmRange`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatasetManagement {
    /// Namespace that the ranges belong to.
    pub nsid: Nsid,
    /// Number of ranges, 1 to 256; zero-based on the wire.
    pub ranges: u16,
    /// Hints on the use of the ranges, and whether to deallocate them.
    pub attributes: DsmAttributes,
}

impl DatasetManagement {
    /// Most ranges in one command.
    pub const MAX_RANGES: u16 = 256;

    pub(crate) fn parse(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            ranges: (sqe.cdw10.get() & 0xFF) as u16 + 1,
            attributes: DsmAttributes::from_bits(sqe.cdw11.get()),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    ///
    /// # Panics
    /// If `ranges` is not in 1 to 256.
    pub fn to_sqe(&self) -> Sqe {
        assert!((1..=Self::MAX_RANGES).contains(&self.ranges), "a command holds 1 to 256 ranges");
        let mut sqe = Sqe::new(NvmOpcode::DATASET_MANAGEMENT.0).with_nsid(self.nsid);
        sqe.cdw10 = U32::new(u32::from(self.ranges - 1));
        sqe.cdw11 = U32::new(self.attributes.into_bits());
        sqe
    }

    /// Length of the list of ranges in bytes.
    pub const fn length_bytes(&self) -> u64 {
        self.ranges as u64 * size_of::<DsmRange>() as u64
    }

    /// Returns the ranges in `data`, the data of the command.
    ///
    /// # Errors
    /// Data SGL Length Invalid with Do Not Retry, if `data` is shorter than the list of ranges.
    pub fn ranges_in<'a>(&self, data: &'a [u8]) -> Result<&'a [DsmRange], Status> {
        match <[DsmRange]>::ref_from_prefix_with_elems(data, usize::from(self.ranges)) {
            Ok((ranges, _rest)) => Ok(ranges),
            Err(_) => Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr()),
        }
    }
}

/// Attributes of Dataset Management: command dword 11.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct DsmAttributes {
    /// Integral dataset for read, IDR: a hint.
    pub integral_read: bool,
    /// Integral dataset for write, IDW: a hint.
    pub integral_write: bool,
    /// Bit 2: deallocate the ranges, AD.
    pub deallocate: bool,
    #[bits(29)]
    __: u32,
}

/// Range of Dataset Management.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct DsmRange {
    /// Context attributes: hints on the expected access.
    pub cattr: U32,
    /// Length in blocks; not zero-based.
    pub length_blocks: U32,
    /// First block of the range, SLBA.
    pub slba: U64,
}

const _: () = assert!(size_of::<DsmRange>() == 16);

impl DsmRange {
    /// Creates a range without hints.
    pub const fn new(slba: u64, length_blocks: u32) -> Self {
        Self { cattr: U32::ZERO, length_blocks: U32::new(length_blocks), slba: U64::new(slba) }
    }
}

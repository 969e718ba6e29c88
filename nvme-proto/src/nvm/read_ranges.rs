//! Read Ranges, a vendor-specific command of Feedrail: one command for several reads.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Nsid, NvmOpcode, Sqe, Status};

/// Read Ranges command, opcode C2h. A controller has it if Identify Controller has
/// [`RangeListOffer`](crate::identify::RangeListOffer).
///
/// | field | content |
/// |---|---|
/// | NSID | namespace of all ranges |
/// | DPTR | keyed data block, host memory for the bytes of the ranges, one after the other |
/// | CDW10, bits 15:0 | number of ranges, zero-based |
/// | CDW11 | sum of the lengths of the ranges in bytes |
/// | in-capsule data, from offset 0 on | that many [`ListedRange`]s |
///
/// Dword 0 of a successful completion is the number of ranges, from the first on, whose bytes are
/// in the host's memory. The controller reads only what needs no wait; a range that would need one,
/// or cannot be read, ends the list. The rest of the memory is then undefined, and the host
/// sends Read commands for the remaining ranges. All other dwords are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRanges {
    /// Namespace that the ranges belong to.
    pub nsid: Nsid,
    /// Number of ranges, 1 to 65,536; zero-based on the wire.
    pub ranges: u32,
    /// Sum of the lengths of the ranges in bytes.
    pub length_bytes: u32,
}

impl ReadRanges {
    #[inline]
    pub(crate) fn parse(sqe: &Sqe) -> Self {
        Self {
            nsid: sqe.nsid(),
            ranges: (sqe.cdw10.get() & 0xFFFF) + 1,
            length_bytes: sqe.cdw11.get(),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer. The list follows the entry in the capsule.
    ///
    /// # Panics
    /// If `ranges` is not in 1 to 65,536.
    pub fn to_sqe(&self) -> Sqe {
        let ranges_z = self.ranges.checked_sub(1).and_then(|z| u16::try_from(z).ok());
        let ranges_z = ranges_z.expect("a command names 1 to 65,536 ranges");
        let mut sqe = Sqe::new(NvmOpcode::READ_RANGES.0).with_nsid(self.nsid);
        sqe.cdw10 = U32::new(ranges_z.into());
        sqe.cdw11 = U32::new(self.length_bytes);
        sqe
    }

    /// Length of the list of ranges in bytes.
    pub const fn list_bytes(&self) -> u32 {
        self.ranges * size_of::<ListedRange>() as u32
    }

    /// Returns the ranges in `data`, the in-capsule data of the command, once all of them are
    /// checked. `size_bytes` is the size of the namespace.
    ///
    /// # Errors
    /// With Do Not Retry: Invalid Field in Command, if `data` is shorter than the list, a range is
    /// empty, or the sum of the lengths is not that of the command; LBA Out of Range, if a
    /// range is outside the namespace.
    pub fn ranges_in<'a>(
        &self,
        data: &'a [u8],
        size_bytes: u64,
    ) -> Result<&'a [ListedRange], Status> {
        let invalid = Status::INVALID_FIELD.with_dnr();
        let (ranges, _rest) =
            <[ListedRange]>::ref_from_prefix_with_elems(data, self.ranges as usize)
                .map_err(|_| invalid)?;
        let mut sum = 0;
        for range in ranges {
            if range.length_bytes.get() == 0 {
                return Err(invalid);
            }
            if range.end().is_none_or(|end| end > size_bytes) {
                return Err(Status::LBA_OUT_OF_RANGE.with_dnr());
            }
            // At most 2^16 terms below 2^32.
            sum += u64::from(range.length_bytes.get());
        }
        if sum == u64::from(self.length_bytes) { Ok(ranges) } else { Err(invalid) }
    }
}

/// Range of [`ReadRanges`], in bytes: it may begin and end within a block.
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
pub struct ListedRange {
    /// First byte in the namespace.
    pub offset_bytes: U64,
    /// Length in bytes, not zero-based and not 0.
    pub length_bytes: U32,
    reserved_12: U32,
}

const _: () = assert!(size_of::<ListedRange>() == 16);

impl ListedRange {
    /// Creates a range with its reserved bytes zero.
    pub const fn new(offset_bytes: u64, length_bytes: u32) -> Self {
        Self {
            offset_bytes: U64::new(offset_bytes),
            length_bytes: U32::new(length_bytes),
            reserved_12: U32::ZERO,
        }
    }

    /// Byte after the last; `None` if that exceeds 64 bits.
    pub fn end(&self) -> Option<u64> {
        self.offset_bytes.get().checked_add(self.length_bytes.get().into())
    }
}

//! Commands on one range of blocks, and Flush.

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;

use crate::{LbaRange, Nsid, NvmOpcode, Sqe};

/// Flush command (Base, 7.2). [`Nsid::ALL`] flushes every namespace, if the controller supports it
/// (VWC in Identify Controller).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Namespace to flush, or [`Nsid::ALL`].
    pub nsid: Nsid,
}

impl Flush {
    pub(crate) fn parse(sqe: &Sqe) -> Self {
        Self { nsid: sqe.nsid() }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        Sqe::new(NvmOpcode::FLUSH.0).with_nsid(self.nsid)
    }
}

/// Read, Write or Compare command (NVM, 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Namespace that the blocks belong to.
    pub nsid: Nsid,
    /// Blocks to read, write or compare.
    pub range: LbaRange,
    /// Force unit access, FUA: Read and Compare read the non-volatile medium; Write completes only
    /// when the data is on it.
    pub fua: bool,
    /// Limited retry, LR: the controller should limit its retries.
    pub limited_retry: bool,
}

impl Io {
    /// Creates a command for `blocks` blocks from `slba` on, without FUA and limited retry.
    pub const fn new(nsid: Nsid, slba: u64, blocks: u32) -> Self {
        Self { nsid, range: LbaRange { slba, blocks }, fua: false, limited_retry: false }
    }

    #[inline]
    pub(crate) fn parse(sqe: &Sqe) -> Self {
        let flags = Dw12::of(sqe);
        Self {
            nsid: sqe.nsid(),
            range: flags.range(sqe),
            fua: flags.fua(),
            limited_retry: flags.limited_retry(),
        }
    }

    pub(crate) fn to_sqe(self, opcode: NvmOpcode) -> Sqe {
        let flags = Dw12::new().with_fua(self.fua).with_limited_retry(self.limited_retry);
        flags.sqe(opcode, self.nsid, self.range)
    }
}

/// Write Zeroes command (NVM, 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteZeroes {
    /// Namespace that the blocks belong to.
    pub nsid: Nsid,
    /// Blocks to set to zero.
    pub range: LbaRange,
    /// Deallocate, DEAC: the host requests that the blocks are deallocated, if they then read as
    /// zeros.
    pub deallocate: bool,
    /// Force unit access, FUA: the command completes only when the zeros are on the non-volatile
    /// medium.
    pub fua: bool,
    /// Limited retry, LR: the controller should limit its retries.
    pub limited_retry: bool,
}

impl WriteZeroes {
    pub(crate) fn parse(sqe: &Sqe) -> Self {
        let flags = Dw12::of(sqe);
        Self {
            nsid: sqe.nsid(),
            range: flags.range(sqe),
            deallocate: flags.deallocate(),
            fua: flags.fua(),
            limited_retry: flags.limited_retry(),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    ///
    /// # Panics
    /// If the range does not have 1 to 65,536 blocks.
    pub fn to_sqe(&self) -> Sqe {
        let flags = Dw12::new()
            .with_deallocate(self.deallocate)
            .with_fua(self.fua)
            .with_limited_retry(self.limited_retry);
        flags.sqe(NvmOpcode::WRITE_ZEROES, self.nsid, self.range)
    }
}

/// Command dword 12 of the commands on one range of blocks.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Dw12 {
    nlb_z: u16,
    #[bits(9)]
    __: u16,
    /// DEAC, for Write Zeroes only.
    deallocate: bool,
    /// PRINFO, ignored without protection information.
    #[bits(4)]
    __: u8,
    fua: bool,
    limited_retry: bool,
}

impl Dw12 {
    fn of(sqe: &Sqe) -> Self {
        Self::from_bits(sqe.cdw12.get())
    }

    fn range(self, sqe: &Sqe) -> LbaRange {
        LbaRange::parse(sqe.cdw10, sqe.cdw11, self.nlb_z())
    }

    fn sqe(self, opcode: NvmOpcode, nsid: Nsid, range: LbaRange) -> Sqe {
        let mut sqe = Sqe::new(opcode.0).with_nsid(nsid);
        (sqe.cdw10, sqe.cdw11) = range.slba_dwords();
        sqe.cdw12 = U32::new(self.with_nlb_z(range.nlb_z()).into_bits());
        sqe
    }
}

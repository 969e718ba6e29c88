//! Logical blocks: formats, and ranges of blocks.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// LBA format (NVM, 4.1.5.1).
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
pub struct LbaFormat {
    /// Metadata bytes per block, MS.
    pub ms: U16,
    /// Block size as a power of two, LBADS; 0 if the format is not available.
    pub lbads: u8,
    /// Relative performance of the format, RP.
    pub rp: RelativePerformance,
}

const _: () = assert!(size_of::<LbaFormat>() == 4);

impl LbaFormat {
    /// Creates a format without metadata. `None` unless `block_bytes` is a power of two of at least
    /// 512.
    pub fn new(block_bytes: u32) -> Option<Self> {
        if !block_bytes.is_power_of_two() || block_bytes < 512 {
            return None;
        }
        let lbads = u8::try_from(block_bytes.trailing_zeros()).ok()?;
        Some(Self { lbads, ..Self::default() })
    }

    /// Data bytes per block; `None` if the format is not available (LBADS below 9) or above 2^31
    /// bytes.
    pub fn block_bytes(&self) -> Option<u32> {
        if self.lbads < 9 {
            return None;
        }
        1u32.checked_shl(u32::from(self.lbads))
    }
}

/// Relative performance, RP: 0 is best, 3 is degraded.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct RelativePerformance {
    /// Bits 1:0: performance, relative to the other formats.
    #[bits(2)]
    pub rp: u8,
    #[bits(6)]
    __: u8,
}

/// Range of logical blocks of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LbaRange {
    /// First block of the range, SLBA.
    pub slba: u64,
    /// Number of blocks, 1 to 65,536; zero-based on the wire.
    pub blocks: u32,
}

impl LbaRange {
    /// Most blocks in one command.
    pub const MAX_BLOCKS: u32 = 1 << 16;

    #[inline]
    pub(crate) fn parse(cdw10: U32, cdw11: U32, nlb_z: u16) -> Self {
        let slba = u64::from(cdw10.get()) | u64::from(cdw11.get()) << 32;
        Self { slba, blocks: u32::from(nlb_z) + 1 }
    }

    /// Returns the zero-based number of blocks, NLB.
    ///
    /// # Panics
    /// If `blocks` is not in 1 to 65,536.
    pub(crate) fn nlb_z(&self) -> u16 {
        let nlb_z = self.blocks.checked_sub(1).and_then(|z| u16::try_from(z).ok());
        nlb_z.expect("a command names 1 to 65,536 blocks")
    }

    /// Returns SLBA as command dwords 10 and 11.
    pub(crate) fn slba_dwords(&self) -> (U32, U32) {
        (U32::new(self.slba as u32), U32::new((self.slba >> 32) as u32))
    }

    /// Checks that the range is within a namespace of `size_blocks` (NSZE).
    ///
    /// # Errors
    /// LBA Out of Range, with Do Not Retry.
    #[inline]
    pub fn check(&self, size_blocks: u64) -> Result<(), Status> {
        match self.slba.checked_add(u64::from(self.blocks)) {
            Some(end) if end <= size_blocks => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE.with_dnr()),
        }
    }

    /// Length of the range in bytes, for blocks of `block_bytes`.
    pub fn length_bytes(&self, block_bytes: u32) -> u64 {
        u64::from(self.blocks) * u64::from(block_bytes)
    }
}

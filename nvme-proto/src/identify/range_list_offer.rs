//! Offer of Read Ranges, in Feedrail's vendor-specific bytes of Identify Controller.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Limits of the command [`ReadRanges`](crate::nvm::ReadRanges), by which a controller says that
/// it has the command. They are in the vendor-specific bytes of Identify Controller, 3072 to 4095
/// (Base, 5.1.13.2.1). All numbers are little-endian:
///
/// | byte | content |
/// |---|---|
/// | 3072..3080 | magic, `FEEDRAIL` in ASCII |
/// | 3080..3082 | version, 1 |
/// | 3082..3084 | most ranges of a command, not zero-based |
/// | 3084..3088 | most bytes of a command |
/// | 3088..4096 | zeros |
///
/// A record of another version, with limits of 0, or with other bytes than zeros at its end offers
/// nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeListOffer {
    /// Most ranges of a command, not 0.
    pub ranges: u16,
    /// Most bytes of a command, not 0.
    pub bytes: u32,
}

/// Size of the vendor-specific bytes of Identify Controller.
pub(super) const AREA_BYTES: usize = 1024;

const MAGIC: [u8; 8] = *b"FEEDRAIL";
const VERSION: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Record {
    magic: [u8; 8],
    version: U16,
    ranges: U16,
    bytes: U32,
    rest: [u8; AREA_BYTES - 16],
}

const _: () = assert!(size_of::<Record>() == AREA_BYTES);

impl RangeListOffer {
    /// Decodes the vendor-specific bytes; `None` if they offer nothing.
    pub fn parse(area: &[u8; AREA_BYTES]) -> Option<Self> {
        let record = Record::ref_from_bytes(area).ok()?;
        let offer = Self { ranges: record.ranges.get(), bytes: record.bytes.get() };
        let is_known = record.magic == MAGIC && record.version.get() == VERSION;
        let is_usable = offer.ranges > 0 && offer.bytes > 0;
        (is_known && is_usable && record.rest.iter().all(|&byte| byte == 0)).then_some(offer)
    }

    /// Encodes the offer as vendor-specific bytes.
    pub fn to_bytes(&self) -> [u8; AREA_BYTES] {
        let mut area = [0; AREA_BYTES];
        let record = Record {
            magic: MAGIC,
            version: U16::new(VERSION),
            ranges: U16::new(self.ranges),
            bytes: U32::new(self.bytes),
            rest: [0; AREA_BYTES - 16],
        };
        area.copy_from_slice(record.as_bytes());
        area
    }
}

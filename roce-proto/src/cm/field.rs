//! Fields of 24 bits that share four bytes with a field of eight.

use zerocopy::byteorder::big_endian::U32;

/// The upper 24 bits, and the byte after them.
pub(super) fn high24(field: U32) -> (u32, u8) {
    (field.get() >> 8, field.get() as u8)
}

/// A 24-bit value and the byte after it.
pub(super) fn join24(high: u32, low: u8) -> U32 {
    U32::new(high << 8 | u32::from(low))
}

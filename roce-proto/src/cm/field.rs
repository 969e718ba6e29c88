//! Words that consist of a 24-bit and an 8-bit field.

use zerocopy::byteorder::big_endian::U32;

/// Splits a word into its upper 24 bits and its lowest byte.
pub(super) fn high24(field: U32) -> (u32, u8) {
    (field.get() >> 8, field.get() as u8)
}

/// Joins a 24-bit value and a byte.
pub(super) fn join24(high: u32, low: u8) -> U32 {
    U32::new(high << 8 | u32::from(low))
}

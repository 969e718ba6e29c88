//! Host identifiers, and their text form as UUIDs.

use core::fmt;
use core::str::FromStr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Host identifier (HOSTID) of 128 bits, in the byte order of a UUID's text (Base, 5.1.25.1.28).
/// Fabrics do not allow 64 bits.
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(transparent)]
pub struct HostId(pub [u8; 16]);

const _: () = assert!(size_of::<HostId>() == 16);

impl HostId {
    /// All zero, which is not a valid identifier for a host that connects.
    pub const ZERO: Self = Self([0; 16]);

    /// Whether all bytes are zero.
    pub const fn is_zero(self) -> bool {
        u128::from_ne_bytes(self.0) == 0
    }

    /// Returns the UUID text of the identifier: 8-4-4-4-12 lower-case hexadecimal digits.
    pub(crate) fn to_text(self) -> [u8; 36] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; 36];
        let mut at = 0;
        for (i, byte) in self.0.into_iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                at += 1;
            }
            text[at] = DIGITS[usize::from(byte >> 4)];
            text[at + 1] = DIGITS[usize::from(byte & 0xF)];
            at += 2;
        }
        text
    }
}

/// Error of parsing a text that is not a UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a host identifier is a UUID: 32 hexadecimal digits, with or without dashes")]
pub struct InvalidHostId;

impl FromStr for HostId {
    type Err = InvalidHostId;

    fn from_str(text: &str) -> Result<Self, InvalidHostId> {
        let mut id = [0u8; 16];
        let mut count = 0;
        for digit in text.chars().filter(|&c| c != '-') {
            let value = digit.to_digit(16).ok_or(InvalidHostId)? as u8;
            let byte = id.get_mut(count / 2).ok_or(InvalidHostId)?;
            *byte = *byte << 4 | value;
            count += 1;
        }
        if count == 32 { Ok(Self(id)) } else { Err(InvalidHostId) }
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(core::str::from_utf8(&self.to_text()).unwrap_or_default())
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

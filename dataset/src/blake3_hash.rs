//! Hashes of manifests and indexes.

use std::fmt;
use std::str::FromStr;

use crate::text::as_text;

/// A BLAKE3 hash of 32 bytes. As text it is `blake3:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blake3Hash(blake3::Hash);

as_text!(Blake3Hash);

const PREFIX: &str = "blake3:";

impl Blake3Hash {
    /// The hash of some bytes. `b3sum` computes the same of a file.
    pub fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes))
    }

    /// The first 8 bytes of the hash as a little-endian number: a key that is the same on every
    /// machine.
    pub(crate) fn key(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.0.as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

impl FromStr for Blake3Hash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let digits = text.strip_prefix(PREFIX).ok_or(InvalidHash)?;
        blake3::Hash::from_hex(digits).map(Self).map_err(|_| InvalidHash)
    }
}

impl fmt::Display for Blake3Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0.to_hex())
    }
}

/// A text that should be a hash and is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is \"blake3:\" and 64 hexadecimal digits")]
pub struct InvalidHash;

#[cfg(test)]
mod tests {
    use super::*;

    /// From the official test vectors of BLAKE3: input of length 0.
    const EMPTY: &str = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

    #[test]
    fn hashes_are_text() {
        assert_eq!(Blake3Hash::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse(), Ok(Blake3Hash::of(b"")));
        assert_eq!(Blake3Hash::of(b"").key(), 0xA6A1_F9F5_B949_13AF);
        for text in ["", "blake3:", &EMPTY[7..], &EMPTY[..70], &format!("{EMPTY}0")] {
            assert_eq!(text.parse::<Blake3Hash>(), Err(InvalidHash), "{text}");
        }
    }
}

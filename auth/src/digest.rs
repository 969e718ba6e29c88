//! Outputs of hash functions: responses, challenges and keys for them.

use std::fmt;
use std::ops::Deref;

use subtle::ConstantTimeEq as _;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes as long as the output of a hash function: 32, 48 or 64. `Debug` shows only their number.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct AuthDigest {
    bytes: [u8; Self::MAX_BYTES],
    length: u8,
}

impl AuthDigest {
    /// Length of the longest output.
    pub const MAX_BYTES: usize = 64;

    /// Copies the bytes; what exceeds 64 is left out.
    pub(crate) fn new(from: &[u8]) -> Self {
        let length = from.len().min(Self::MAX_BYTES);
        let mut bytes = [0; Self::MAX_BYTES];
        bytes[..length].copy_from_slice(&from[..length]);
        Self { bytes, length: length as u8 }
    }

    /// Draws `length` random bytes, at most 64.
    pub(crate) fn random(length: usize, random: &mut crate::random::RandomBytes<'_>) -> Self {
        let mut digest = Self::new(&[0; Self::MAX_BYTES][..length.min(Self::MAX_BYTES)]);
        random(&mut digest.bytes[..usize::from(digest.length)]);
        digest
    }

    /// Whether the bytes are the same, in a time that depends on their number only.
    pub(crate) fn matches(&self, other: &[u8]) -> bool {
        self.ct_eq(other).into()
    }
}

impl Deref for AuthDigest {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl fmt::Debug for AuthDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.length)
    }
}

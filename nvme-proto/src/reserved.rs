//! Reserved bytes of structures.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Reserved bytes of a structure. Received values are kept. `Debug` shows how many there are and
/// whether all are zero.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Reserved<const N: usize>([u8; N]);

impl<const N: usize> Reserved<N> {
    /// All zero, as a sender has to set them.
    pub const ZERO: Self = Self([0; N]);
}

impl<const N: usize> Default for Reserved<N> {
    fn default() -> Self {
        Self::ZERO
    }
}

impl<const N: usize> fmt::Debug for Reserved<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ZERO {
            write!(f, "{N} zeros")
        } else {
            write!(f, "{N} bytes, not all zero")
        }
    }
}

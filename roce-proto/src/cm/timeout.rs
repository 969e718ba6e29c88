//! Time-outs as powers of two of 4.096 microseconds.

use core::time::Duration;

/// A 5-bit time-out of the wire: 4.096 us times two to the power of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeoutExponent(u8);

impl TimeoutExponent {
    /// The longest, about 2.4 hours.
    pub const MAX: Self = Self(31);

    /// The exponent, or the longest if it does not fit the field.
    pub const fn saturating(exponent: u8) -> Self {
        if exponent > Self::MAX.0 { Self::MAX } else { Self(exponent) }
    }

    /// The exponent n, 0..=31, of 4.096 us times 2^n.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The duration that the exponent stands for.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// The exponent of the sum of two time-outs: the longer one, and one more if the shorter counts
    /// for at least half of it.
    pub(super) const fn plus(self, other: Self) -> Self {
        let (long, short) = if self.0 >= other.0 { (self, other) } else { (other, self) };
        Self::saturating(long.0 + (short.0 + 1 >= long.0) as u8)
    }
}

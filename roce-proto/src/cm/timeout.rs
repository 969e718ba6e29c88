//! Timeouts as 5-bit exponents.

use core::time::Duration;

/// A 5-bit timeout `n` on the wire: 4.096 us * 2^n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TimeoutExponent(u8);

impl TimeoutExponent {
    /// The longest timeout, about 2.4 hours.
    pub const MAX: Self = Self(31);

    /// The timeout with this exponent, limited to 31.
    pub const fn saturating(exponent: u8) -> Self {
        if exponent > Self::MAX.0 { Self::MAX } else { Self(exponent) }
    }

    /// The exponent `n`, which is 0..=31.
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The duration that the exponent stands for.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(4096 << self.0)
    }

    /// Approximate sum of two timeouts: the longer one, or the next longer if the shorter is at
    /// least half of it.
    pub(super) const fn plus(self, other: Self) -> Self {
        let (long, short) = if self.0 >= other.0 { (self, other) } else { (other, self) };
        Self::saturating(long.0 + (short.0 + 1 >= long.0) as u8)
    }
}

//! Packet sequence numbers (PSNs) and their order.

use core::fmt;

/// A packet sequence number (PSN): 24 bits, compared as a serial number (IBTA volume 1, 9.7.2): `b`
/// is later than `a` if it is less than 2^23 ahead of it, modulo 2^24.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0x00FF_FFFF;

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & Self::MASK)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `packets` later.
    pub const fn plus(self, packets: u32) -> Self {
        Self(self.0.wrapping_add(packets) & Self::MASK)
    }

    /// The number `packets` earlier.
    pub const fn minus(self, packets: u32) -> Self {
        Self(self.0.wrapping_sub(packets) & Self::MASK)
    }

    /// The number after this one.
    pub const fn next(self) -> Self {
        self.plus(1)
    }

    /// The number of packets from `earlier` to `self`, modulo 2^24.
    pub const fn since(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0) & Self::MASK
    }

    /// Whether `self` comes before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.0 != other.0 && other.since(self) <= Self::MASK >> 1
    }

    /// Whether `self` is in `first..end`, modulo 2^24.
    pub const fn is_within(self, first: Self, end: Self) -> bool {
        self.since(first) < end.since(first)
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Psn;

    proptest! {
        #[test]
        fn plus_and_since_are_inverse(start in 0u32..1 << 24, packets in 0u32..1 << 24) {
            let start = Psn::new(start);
            prop_assert_eq!(start.plus(packets).since(start), packets);
            prop_assert_eq!(start.plus(packets).minus(packets), start);
        }

        #[test]
        fn order_holds_across_the_wrap(start in 0u32..1 << 24, packets in 1u32..1 << 23) {
            let (start, later) = (Psn::new(start), Psn::new(start).plus(packets));
            prop_assert!(start.is_before(later));
            prop_assert!(!later.is_before(start));
            prop_assert!(!start.is_before(start));
        }

        #[test]
        fn a_range_holds_its_numbers(start in 0u32..1 << 24, length in 0u32..1000, at in 0u32..2000) {
            let first = Psn::new(start);
            prop_assert_eq!(first.plus(at).is_within(first, first.plus(length)), at < length);
        }
    }
}

//! SplitMix64 (Steele, Lea and Flood, 2014): a pseudo-random generator whose sequence depends only
//! on its seed.
//!
//! The generator is fast, but not secure: one of its numbers suffices to compute all later ones.
//! Unpredictable numbers must come from the operating system.
#![no_std]
#![forbid(unsafe_code)]

/// Generator of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates the generator for a seed. All seeds are equally good, 0 included.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number of the sequence.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// Returns a number below `bound`, or 0 if `bound` is 0. The probabilities of the numbers
    /// differ by at most one part in 2^64 / `bound`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.next_u64() as u128 * bound as u128) >> 64) as u64
    }

    /// Returns an index into a slice of `length` items, or 0 if it is empty.
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns true with a probability of `per_million` in 1,000,000.
    pub const fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < per_million as u64
    }

    /// Shuffles the items (Fisher-Yates); each order is equally likely.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }
}

/// Mixing step of the generator: a bijection in which each bit of the argument affects half of the
/// result's bits on average.
pub const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequence() {
        let mut random = SplitMix64::new(1_234_567);
        assert_eq!(random.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(random.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_shuffle_keeps_every_item() {
        let sorted: [u32; 1000] = core::array::from_fn(|i| i as u32);
        let mut items = sorted;
        SplitMix64::new(7).shuffle(&mut items);
        assert_ne!(items, sorted);
        items.sort_unstable();
        assert_eq!(items, sorted);
    }

    #[test]
    fn below_stays_below() {
        let mut random = SplitMix64::new(3);
        assert!((0..10_000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(1), 0);
    }
}

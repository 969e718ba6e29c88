//! The one source of randomness: a seed.

use splitmix64::SplitMix64;

/// Random numbers that follow from a seed.
#[derive(Clone, Debug)]
pub struct FuzzRandom(SplitMix64);

impl FuzzRandom {
    /// The stream of numbers that belongs to `seed`.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number of the sequence, uniform over 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }
}

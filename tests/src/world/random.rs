//! Random numbers that are a function of a seed.

use std::ops::Range;

use splitmix64::SplitMix64;

/// A source of random numbers.
#[derive(Clone, Debug)]
pub struct Random(SplitMix64);

impl Random {
    /// The source that belongs to a seed.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next number of the sequence, uniform over 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in a range that is not empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        assert!(!range.is_empty(), "no number is in {range:?}");
        range.start + self.next_u64() % (range.end - range.start)
    }

    /// True with this probability.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    /// True with a probability of `ppm` in a million.
    pub fn ppm(&mut self, ppm: u32) -> bool {
        self.within(0..1_000_000) < u64::from(ppm)
    }

    /// One of several choices, each as likely as the others.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.within(0..choices.len() as u64) as usize]
    }

    /// Fills the slice with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

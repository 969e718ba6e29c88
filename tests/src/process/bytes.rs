//! Contents of test files.

use splitmix64::SplitMix64;

/// A repeatable stream of bytes in which no two positions look alike for long.
#[derive(Clone, Debug)]
pub struct Bytes(SplitMix64);

impl Bytes {
    /// One seed, one stream.
    pub fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in `0..bound`; `bound` is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// The next `length` bytes.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(self.next_u64().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }
}

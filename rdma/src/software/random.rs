//! Random numbers: from the system where an attacker must not predict them, from a seed where a run
//! must be repeatable.

use std::io;

use chacha20::ChaCha12Rng;
use chacha20::rand_core::{Rng, SeedableRng};
use splitmix64::SplitMix64;

/// The source of a device's random numbers. Each network fixes its type
/// ([`crate::roce::Fabric::Entropy`]), so that a device on a real network cannot be seeded.
pub trait Entropy {
    /// Returns a random stream that is independent of all others.
    ///
    /// # Errors
    /// The error of `getrandom`.
    #[doc(hidden)]
    fn stream(&mut self) -> io::Result<Random>;
}

/// The system's random generator: each stream is keyed by `getrandom`.
#[derive(Debug)]
pub struct SystemEntropy;

/// A seeded generator for simulated networks; its numbers are predictable.
#[derive(Debug)]
pub struct SeededEntropy(SplitMix64);

/// A stream of random numbers.
pub struct Random(RandomSource);

enum RandomSource {
    System(Box<ChaCha12Rng>),
    Seeded(SplitMix64),
}

/// Fills the slice with random numbers of the system, which nobody can predict.
///
/// # Errors
/// The error of `getrandom`: the kernel is older than 3.17.
pub fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled +=
            rustix::io::retry_on_intr(|| rustix::rand::getrandom(&mut bytes[filled..], flags))?;
    }
    Ok(())
}

impl Entropy for SystemEntropy {
    fn stream(&mut self) -> io::Result<Random> {
        let mut key = [0; 32];
        fill_random(&mut key)?;
        Ok(Random(RandomSource::System(Box::new(ChaCha12Rng::from_seed(key)))))
    }
}

impl SeededEntropy {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }
}

impl Entropy for SeededEntropy {
    fn stream(&mut self) -> io::Result<Random> {
        Ok(Random(RandomSource::Seeded(SplitMix64::new(self.0.next_u64()))))
    }
}

impl Random {
    #[cfg(test)]
    pub(crate) const fn seeded(seed: u64) -> Self {
        Self(RandomSource::Seeded(SplitMix64::new(seed)))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        match &mut self.0 {
            RandomSource::System(generator) => generator.next_u64(),
            RandomSource::Seeded(generator) => generator.next_u64(),
        }
    }

    pub(crate) fn next_u128(&mut self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// A number from 0 to `bound - 1`; `bound` must not be zero. The bias is negligible: at most
    /// `bound / 2^64`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        scale(self.next_u64(), bound)
    }
}

fn scale(number: u64, bound: u64) -> u64 {
    let wide = u128::from(number) * u128::from(bound);
    u64::try_from(wide >> 64).expect("the upper half of a product of two 64-bit numbers")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number that a splitmix64 sequence gives after `number`: its mixing step undone.
    fn splitmix_after(number: u64) -> u64 {
        fn unshift(mixed: u64, by: u32) -> u64 {
            (0..64 / by).fold(mixed, |z, _| mixed ^ (z >> by))
        }
        let z = unshift(number, 31).wrapping_mul(0x3196_42B2_D24D_8EC3);
        let z = unshift(z, 27).wrapping_mul(0x96DE_1B17_3F11_9089);
        SplitMix64::new(unshift(z, 30)).next_u64()
    }

    #[test]
    fn the_systems_numbers_are_not_computable() {
        let mut seeded = SeededEntropy::new(7).stream().unwrap();
        assert_eq!(splitmix_after(seeded.next_u64()), seeded.next_u64(), "the attack works");
        let mut system = SystemEntropy.stream().unwrap();
        for _ in 0..100 {
            assert_ne!(splitmix_after(system.next_u64()), system.next_u64());
        }
    }

    #[test]
    fn the_systems_streams_differ() {
        let [mut a, mut b] = [0, 1].map(|_| SystemEntropy.stream().unwrap());
        assert_ne!(a.next_u128(), b.next_u128());
    }

    #[test]
    fn a_seed_repeats_its_streams() {
        let numbers = |seed| {
            let mut entropy = SeededEntropy::new(seed);
            [0, 1].map(|_| entropy.stream().unwrap().next_u128())
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert_ne!(numbers(7)[0], numbers(7)[1]);
    }
}

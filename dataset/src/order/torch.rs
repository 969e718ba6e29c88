//! The order of torch's `DistributedSampler`.

use rand_mt::Mt;

use super::Error;

/// Result of `torch.randperm(n, generator=g)` on the CPU, after `g.manual_seed(seed)`. It is a
/// table of 4 bytes per sample: torch swaps numbers in a list, so no position can be computed
/// without the others.
#[derive(Clone, Debug)]
pub(super) struct TorchOrder(Vec<u32>);

/// Length from which torch takes 64 random bits for each number instead of 32, and inserts numbers
/// into a growing list instead of swapping those of a full one.
const LONG: usize = u32::MAX as usize / 20;

impl TorchOrder {
    /// Creates the permutation for a seed, whose low 32 bits torch's generator uses.
    pub(super) fn new(samples: u64, seed: u64) -> Result<Self, Error> {
        let max = u64::from(u32::MAX);
        let length = u32::try_from(samples).map_err(|_| Error::TooMany { samples, max })?;
        let mut numbers = Vec::new();
        let reserved = numbers.try_reserve_exact(length as usize);
        reserved.map_err(|_| Error::NoMemory { samples })?;
        let mut random = Mt::new(seed as u32);
        let shuffle = if (length as usize) < LONG { swap } else { insert };
        shuffle(&mut numbers, length, &mut random);
        Ok(Self(numbers))
    }

    /// Returns the sample at a position, which must be below the length.
    pub(super) fn get(&self, position: u64) -> u64 {
        u64::from(self.0[position as usize])
    }
}

/// Swaps each number with a random one at its own position or behind it. The last has no choice,
/// and torch draws no random number for it.
fn swap(numbers: &mut Vec<u32>, length: u32, random: &mut Mt) {
    numbers.extend(0..length);
    for at in 0..length.saturating_sub(1) {
        let other = at + random.next_u32() % (length - at);
        numbers.swap(at as usize, other as usize);
    }
}

/// Swaps each new number with a random one at a position up to its own.
fn insert(numbers: &mut Vec<u32>, length: u32, random: &mut Mt) {
    for number in 0..length {
        let high = u64::from(random.next_u32()) << 32;
        let place = (high | u64::from(random.next_u32())) % (u64::from(number) + 1);
        numbers.push(number);
        numbers.swap(place as usize, number as usize);
    }
}

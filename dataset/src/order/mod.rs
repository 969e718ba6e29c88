//! The order in which the samples of an epoch are read.
//!
//! An [`Order`] says which sample is at each position of an epoch. Positions are global: they count
//! the samples that all ranks and workers read together, and a [`Stripe`] or a [`Split`] says which
//! of them are whose. So the sequence of an epoch does not depend on how many read it.
//!
//! | order | samples are read | memory |
//! |---|---|---|
//! | [`Shuffle::Sequential`] | in the order of their numbers | none |
//! | [`Shuffle::Global`] | each permutation of all samples being as likely | 300 bytes |
//! | [`Shuffle::Block`] | near each other, in windows of blocks | 900 bytes |
//! | [`Shuffle::Torch`] | as torch's `DistributedSampler` reads them | 4 bytes a sample |
//!
//! All but the first differ from epoch to epoch. What a seed and an epoch give never changes: a
//! later version of this crate continues what an earlier one began.
//!
//! # The permutation
//! `Global` and `Block` use a keyed permutation without a table: a Feistel network over pairs. A
//! number is the pair of its row and its column in a matrix of about as many rows as columns. Each
//! round adds to the row a hash of key and column, modulo the number of rows, or to the column a
//! hash of key and row. Subtracting undoes what adding has done, so the network is a permutation of
//! the matrix. The matrix has fewer elements too many than it has rows; a result that is one of
//! those is given to the network again until it is a number (cycle walking, which one in a million
//! positions needs for 10^12 samples). A matrix fits any length, where halves of bits would make a
//! walk of up to four steps; and swap-or-not would need some hundred rounds for 10^12. Four rounds
//! make such a network hard to tell from a random permutation (Luby and Rackoff, 1988). There are
//! eight, and 24 below 65,536 samples, where a hash has few values: with these, all permutations of
//! eight samples come equally often in 5,000,000 seeds. The number of rows is even, since odd rows
//! and columns would give even permutations only. It is no cipher: who knows the samples may find
//! the key.

mod block;
mod permutation;
mod shuffle;
mod split;
mod torch;

#[cfg(test)]
mod tests;

use std::num::NonZeroU64;
use std::ops::Range;

pub use shuffle::{InvalidShuffle, Shuffle};
pub use split::{Leftover, NoStripe, Split, Stripe};

use block::BlockOrder;
use permutation::{OrderKey, Permutation};
use torch::TorchOrder;

/// The most samples that an order can have, as NumPy and torch count them in 64 bits with a sign.
pub const SAMPLES_MAX: u64 = i64::MAX as u64;

/// Which sample is at which position of one epoch.
#[derive(Clone, Debug)]
pub struct Order {
    samples: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Sequential,
    Global(Permutation),
    Block(Box<BlockOrder>),
    Torch(TorchOrder),
}

impl Kind {
    fn new(shuffle: Shuffle, length: NonZeroU64, seed: u64, epoch: u64) -> Result<Self, Error> {
        let key = OrderKey::new(seed, epoch);
        Ok(match shuffle {
            Shuffle::Sequential => Self::Sequential,
            Shuffle::Global => Self::Global(Permutation::new(length, key)),
            Shuffle::Block { block, window } => {
                Self::Block(Box::new(BlockOrder::new(length, block, window, key)))
            }
            // This is what `DistributedSampler` seeds its generator with.
            Shuffle::Torch => Self::Torch(TorchOrder::new(length.get(), seed.wrapping_add(epoch))?),
        })
    }
}

impl Order {
    /// The order of an epoch of that many samples. It takes some microseconds, and for
    /// [`Shuffle::Torch`] about 10 ns a sample.
    ///
    /// # Errors
    /// There are more samples than the order can have, or than there is memory for.
    pub fn new(shuffle: Shuffle, samples: u64, seed: u64, epoch: u64) -> Result<Self, Error> {
        if samples > SAMPLES_MAX {
            return Err(Error::TooMany { samples, max: SAMPLES_MAX });
        }
        let kind = match NonZeroU64::new(samples) {
            Some(length) => Kind::new(shuffle, length, seed, epoch)?,
            None => Kind::Sequential,
        };
        Ok(Self { samples, kind })
    }

    /// How many samples, and so positions, the epoch has.
    pub const fn len(&self) -> u64 {
        self.samples
    }

    /// Whether the epoch has no sample.
    pub const fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// The sample at a position, or `None` from the end of the epoch on.
    pub fn sample(&self, position: u64) -> Option<u64> {
        let mut sample = [0];
        (self.fill(position, &mut sample) == 1).then_some(sample[0])
    }

    /// Writes the samples from a position on, and returns how many there were: fewer than asked for
    /// at the end of the epoch.
    pub fn fill(&self, start: u64, samples: &mut [u64]) -> usize {
        self.fill_every(start, NonZeroU64::MIN, samples)
    }

    /// Writes the samples at those positions of a range that are of a stripe, as a rank reads a
    /// batch, and returns how many there were: fewer than the stripe has if there is no room.
    pub fn fill_stripe(&self, range: Range<u64>, stripe: Stripe, samples: &mut [u64]) -> usize {
        let count = stripe.len_of(range.clone());
        let count = usize::try_from(count).map_or(samples.len(), |count| count.min(samples.len()));
        // Without a position of the stripe its first may lie beyond 64 bits.
        let start = range.start.saturating_add(stripe.index().into());
        self.fill_every(start, stripe.count(), &mut samples[..count])
    }

    /// Writes the samples at the positions `start`, `start + step`, `start + 2 * step` and so on,
    /// as one of `step` ranks reads them, and returns how many there were.
    pub fn fill_every(&self, start: u64, step: NonZeroU64, samples: &mut [u64]) -> usize {
        let left = self.samples.saturating_sub(start).div_ceil(step.get());
        let count = usize::try_from(left).map_or(samples.len(), |left| left.min(samples.len()));
        let samples = &mut samples[..count];
        // Positions below `len` do not overflow; the one after the last is not computed.
        let positions = (0..count as u64).map(|i| start + i * step.get());
        match &self.kind {
            Kind::Sequential => write(samples, positions),
            Kind::Global(permutation) => write(samples, positions.map(|at| permutation.get(at))),
            Kind::Block(order) => order.fill(positions, samples),
            Kind::Torch(order) => write(samples, positions.map(|at| order.get(at))),
        }
        count
    }
}

fn write(samples: &mut [u64], values: impl Iterator<Item = u64>) {
    samples.iter_mut().zip(values).for_each(|(sample, value)| *sample = value);
}

/// Why there is no such order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// More samples than the order can count.
    #[error("the order has at most {max} samples, not {samples}")]
    TooMany {
        /// How many samples were asked for.
        samples: u64,
        /// How many there may be.
        max: u64,
    },
    /// Torch's order keeps all samples in memory, and there is too little of it.
    #[error(
        "no memory for torch's order of {samples} samples, 4 bytes each; the order \"global\" \
         needs none"
    )]
    NoMemory {
        /// How many samples were asked for.
        samples: u64,
    },
}

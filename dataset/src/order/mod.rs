//! The order in which the samples of an epoch are read.
//!
//! An [`Order`] maps each position of an epoch to a sample. Positions are global: they count the
//! samples that all ranks and workers read together, and a [`Stripe`] or a [`Split`] assigns
//! positions to a rank or worker. So the sequence of an epoch does not depend on their number.
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
//! hash of key and row. Subtraction inverts this, so the network is a permutation of the matrix.
//! The matrix exceeds the length by fewer elements than it has rows; a result behind the length is
//! passed to the network again until it is below (cycle walking, which one in a million positions
//! needs for 10^12 samples). A matrix fits any length, while a network over halves of the bits
//! would need walks of up to four steps, and swap-or-not some hundred rounds for 10^12 samples.
//! Four rounds make such a network hard to distinguish from a random permutation (Luby and Rackoff,
//! 1988). There are eight, and 24 below 65,536 samples, where a hash has few values: with these,
//! all permutations of eight samples are equally frequent in 5,000,000 seeds. The number of rows is
//! even, since odd rows and columns would result only in even permutations. It is not a cipher: the
//! key may be computed from the order of the samples.

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

/// Maximum number of samples of an order, since NumPy and torch use signed 64-bit numbers.
pub const SAMPLES_MAX: u64 = i64::MAX as u64;

/// Order of the samples of one epoch.
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
            // `DistributedSampler` seeds its generator with this sum.
            Shuffle::Torch => Self::Torch(TorchOrder::new(length.get(), seed.wrapping_add(epoch))?),
        })
    }
}

impl Order {
    /// Creates the order of an epoch of `samples` samples. It takes some microseconds, and for
    /// [`Shuffle::Torch`] about 10 ns per sample.
    ///
    /// # Errors
    /// The number of samples exceeds the limit of the order, or memory.
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

    /// Number of samples, and so of positions, in the epoch.
    pub const fn len(&self) -> u64 {
        self.samples
    }

    /// Whether the epoch has no samples.
    pub const fn is_empty(&self) -> bool {
        self.samples == 0
    }

    /// Returns the sample at a position; `None` from the end of the epoch on.
    pub fn sample(&self, position: u64) -> Option<u64> {
        let mut sample = [0];
        (self.fill(position, &mut sample) == 1).then_some(sample[0])
    }

    /// Writes the samples from position `start` on. Returns their number, which is less than
    /// `samples.len()` only at the end of the epoch.
    pub fn fill(&self, start: u64, samples: &mut [u64]) -> usize {
        self.fill_every(start, NonZeroU64::MIN, samples)
    }

    /// Writes the samples at the positions in `range` that belong to a stripe, as a rank reads a
    /// batch. Returns their number, which `samples.len()` limits.
    pub fn fill_stripe(&self, range: Range<u64>, stripe: Stripe, samples: &mut [u64]) -> usize {
        let count = stripe.len_of(range.clone());
        let count = usize::try_from(count).map_or(samples.len(), |count| count.min(samples.len()));
        // If the range contains no position of the stripe, its first could exceed 64 bits.
        let start = range.start.saturating_add(stripe.index().into());
        self.fill_every(start, stripe.count(), &mut samples[..count])
    }

    /// Writes the samples at positions `start`, `start + step`, `start + 2 * step` and so on, as
    /// one of `step` ranks reads them. Returns their number.
    pub fn fill_every(&self, start: u64, step: NonZeroU64, samples: &mut [u64]) -> usize {
        let left = self.samples.saturating_sub(start).div_ceil(step.get());
        let count = usize::try_from(left).map_or(samples.len(), |left| left.min(samples.len()));
        let samples = &mut samples[..count];
        // Positions below `len` do not overflow; the one behind the last is not computed.
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

/// Reason why an order cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The number of samples exceeds the limit of the order.
    #[error("the order has at most {max} samples, not {samples}")]
    TooMany {
        /// Requested number of samples.
        samples: u64,
        /// Maximum number of samples.
        max: u64,
    },
    /// Memory does not suffice for torch's order, which keeps 4 bytes for each sample.
    #[error(
        "no memory for torch's order of {samples} samples, 4 bytes each; the order \"global\" \
         needs none"
    )]
    NoMemory {
        /// Requested number of samples.
        samples: u64,
    },
}

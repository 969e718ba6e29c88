//! Which positions of an epoch are whose.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;

/// One of `count` that share positions, by turns: a rank of a world, or a worker of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    index: u32,
    count: NonZeroU32,
}

impl Stripe {
    /// The only one of one.
    pub const WHOLE: Self = Self { index: 0, count: NonZeroU32::MIN };

    /// Number `index`, from 0, of `count`.
    ///
    /// # Errors
    /// `index` is not below `count`.
    pub const fn new(index: u32, count: u32) -> Result<Self, NoStripe> {
        match NonZeroU32::new(count) {
            Some(count) if index < count.get() => Ok(Self { index, count }),
            _ => Err(NoStripe { index, count }),
        }
    }

    /// Number of the stripe, from 0.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many share the positions.
    pub const fn count(self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(self.count.get() as u64 - 1)
    }

    /// The positions in a range that are its own: the first of the range is that of number 0, the
    /// next that of number 1. A range of `n` positions gives each of `n / count`, and one more to
    /// the first `n % count`.
    pub fn of(self, range: Range<u64>) -> impl Iterator<Item = u64> + Clone {
        let count = self.len_of(range.clone());
        // Below the end of the range, so that nothing overflows.
        (0..count).map(move |i| range.start + u64::from(self.index) + i * self.count().get())
    }

    /// How many positions [`of`](Self::of) gives.
    pub fn len_of(self, range: Range<u64>) -> u64 {
        let length = range.end.saturating_sub(range.start);
        length.saturating_sub(self.index.into()).div_ceil(self.count().get())
    }
}

/// A number that is not below the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{index} is none of {count}, counted from 0")]
pub struct NoStripe {
    index: u32,
    count: u32,
}

/// Rule for the positions at the end of an epoch that do not suffice for one of each rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// The first ranks have one position more than the others. No sample comes twice or is missing.
    #[default]
    Keep,
    /// Every rank has as many positions as the first: the epoch is continued from its beginning,
    /// over and over if it is shorter than the world. So does `DistributedSampler`.
    Pad,
    /// No rank has them. So does `DistributedSampler` with `drop_last=True`.
    Drop,
}

/// An epoch that ranks read by turns, position by position, as `DistributedSampler` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// How many samples the epoch has.
    pub samples: u64,
    /// One rank of the world.
    pub rank: Stripe,
    /// Rule for the last positions.
    pub leftover: Leftover,
}

impl Split {
    /// How many positions the rank has.
    pub fn len(self) -> u64 {
        match self.leftover {
            Leftover::Keep => self.rank.len_of(0..self.samples),
            Leftover::Pad => self.samples.div_ceil(self.rank.count().get()),
            Leftover::Drop => self.samples / self.rank.count().get(),
        }
    }

    /// Whether the rank has no position.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The position in the epoch of the rank's sample number `i`, from 0; `None` after its last.
    pub fn position(self, i: u64) -> Option<u64> {
        if i >= self.len() {
            return None;
        }
        let position = u128::from(i) * u128::from(self.rank.count().get());
        let position = position + u128::from(self.rank.index());
        // Only padding goes beyond the samples, and at least one sample exists.
        Some((position % u128::from(self.samples)) as u64)
    }
}

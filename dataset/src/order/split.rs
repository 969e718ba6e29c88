//! Distribution of the positions of an epoch over ranks and workers.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;

/// One of `count` parts of a range of positions, dealt round-robin: that of a rank of a world, or
/// of a worker of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stripe {
    index: u32,
    count: NonZeroU32,
}

impl Stripe {
    /// The whole range, as the only part.
    pub const WHOLE: Self = Self { index: 0, count: NonZeroU32::MIN };

    /// Creates part `index`, from 0, of `count` parts.
    ///
    /// # Errors
    /// [`NoStripe`] if `index` is not below `count`.
    pub const fn new(index: u32, count: u32) -> Result<Self, NoStripe> {
        match NonZeroU32::new(count) {
            Some(count) if index < count.get() => Ok(Self { index, count }),
            _ => Err(NoStripe { index, count }),
        }
    }

    /// Number of the part, from 0.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// Number of parts of the range.
    pub const fn count(self) -> NonZeroU64 {
        NonZeroU64::MIN.saturating_add(self.count.get() as u64 - 1)
    }

    /// Returns the positions in `range` that belong to this part: the first of the range belongs to
    /// part 0, the next to part 1. Of `n` positions each part gets `n / count`, and the first `n %
    /// count` parts get one more.
    pub fn of(self, range: Range<u64>) -> impl Iterator<Item = u64> + Clone {
        let count = self.len_of(range.clone());
        // All positions are below the end of the range, so nothing overflows.
        (0..count).map(move |i| range.start + u64::from(self.index) + i * self.count().get())
    }

    /// Number of positions that [`of`](Self::of) returns.
    pub fn len_of(self, range: Range<u64>) -> u64 {
        let length = range.end.saturating_sub(range.start);
        length.saturating_sub(self.index.into()).div_ceil(self.count().get())
    }
}

/// Error: the number of a part is not below the number of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{index} is none of {count}, counted from 0")]
pub struct NoStripe {
    index: u32,
    count: u32,
}

/// Treatment of the last positions of an epoch, if they are fewer than the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    /// The first ranks have one position more than the others. No sample is repeated or left out.
    #[default]
    Keep,
    /// Every rank has as many positions as the first: the epoch is repeated from its beginning as
    /// often as needed, as by `DistributedSampler`.
    Pad,
    /// No rank has these positions, as by `DistributedSampler` with `drop_last=True`.
    Drop,
}

/// Epoch that is distributed over ranks position by position, as by `DistributedSampler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Number of samples in the epoch.
    pub samples: u64,
    /// Number of this rank, and the number of ranks.
    pub rank: Stripe,
    /// Treatment of the last positions.
    pub leftover: Leftover,
}

impl Split {
    /// Number of positions of the rank.
    pub fn len(self) -> u64 {
        match self.leftover {
            Leftover::Keep => self.rank.len_of(0..self.samples),
            Leftover::Pad => self.samples.div_ceil(self.rank.count().get()),
            Leftover::Drop => self.samples / self.rank.count().get(),
        }
    }

    /// Whether the rank has no positions.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the position in the epoch of sample `i`, from 0, of the rank; `None` behind its
    /// last.
    pub fn position(self, i: u64) -> Option<u64> {
        if i >= self.len() {
            return None;
        }
        let position = u128::from(i) * u128::from(self.rank.count().get());
        let position = position + u128::from(self.rank.index());
        // Only padding exceeds the samples, and then there is at least one sample.
        Some((position % u128::from(self.samples)) as u64)
    }
}

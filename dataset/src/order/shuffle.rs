//! The kinds of orders, as states and Python name them.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::text::as_text;

/// How the samples of an epoch are put in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// Samples in the order of their numbers, `sequential`. Seed and epoch do not matter.
    Sequential,
    /// A keyed permutation of all samples, `global`. See [`order`](super).
    #[default]
    Global,
    /// Permuted blocks, and permuted samples within windows of blocks, `block:BLOCK:WINDOW`. Block
    /// `b` has the samples from `b * block` to `(b + 1) * block - 1`; the last may be shorter. The
    /// blocks of the data set are permuted; the first `window` of the permuted ones are the first
    /// window, the next `window` the next, and the last may have fewer. The samples of each window
    /// are permuted. A reader that reads a whole window in one call thus reads `window` runs of
    /// `block` samples.
    Block {
        /// How many samples a block has.
        block: NonZeroU32,
        /// How many blocks a window has.
        window: NonZeroU32,
    },
    /// The order of torch's `DistributedSampler` with `shuffle=True`, `torch`. Seeds that differ
    /// only above the low 32 bits have the same order, as in torch, and seed 1 in epoch 0 has that
    /// of seed 0 in epoch 1.
    Torch,
}

as_text!(Shuffle);

impl Shuffle {
    /// Whether the order is the same with either seed.
    pub(crate) const fn is_same_seed(self, a: u64, b: u64) -> bool {
        match self {
            Self::Sequential => true,
            Self::Global | Self::Block { .. } => a == b,
            Self::Torch => a as u32 == b as u32,
        }
    }
}

impl FromStr for Shuffle {
    type Err = InvalidShuffle;

    fn from_str(text: &str) -> Result<Self, InvalidShuffle> {
        match text {
            "sequential" => Ok(Self::Sequential),
            "global" => Ok(Self::Global),
            "torch" => Ok(Self::Torch),
            _ => {
                let sizes = text.strip_prefix("block:").and_then(|sizes| sizes.split_once(':'));
                let (block, window) = sizes.ok_or(InvalidShuffle)?;
                Ok(Self::Block { block: size(block)?, window: size(window)? })
            }
        }
    }
}

fn size(text: &str) -> Result<NonZeroU32, InvalidShuffle> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).ok_or(InvalidShuffle)
}

impl fmt::Display for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequential => f.write_str("sequential"),
            Self::Global => f.write_str("global"),
            Self::Block { block, window } => write!(f, "block:{block}:{window}"),
            Self::Torch => f.write_str("torch"),
        }
    }
}

/// A text that names no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order is sequential, global, torch or block:BLOCK:WINDOW, as in block:1024:64")]
pub struct InvalidShuffle;

//! Kinds of orders, with their names in states and in Python.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use crate::text::as_text;

/// Kind of order of the samples in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// `sequential`: samples in the order of their numbers, whatever seed and epoch are.
    Sequential,
    /// `global`: a keyed permutation of all samples. See [`order`](super).
    #[default]
    Global,
    /// `block:BLOCK:WINDOW`: permuted blocks, and permuted samples within windows of blocks. Block
    /// `b` consists of the samples from `b * block` to `(b + 1) * block - 1`; the last may be
    /// shorter. The blocks are permuted; each `window` successive blocks of the result are a
    /// window, and the last window may have fewer. The samples of each window are permuted. A
    /// reader that reads a whole window in one call thus reads `window` runs of `block` samples.
    Block {
        /// Number of samples in a block.
        block: NonZeroU32,
        /// Number of blocks in a window.
        window: NonZeroU32,
    },
    /// `torch`: the order of torch's `DistributedSampler` with `shuffle=True`. As in torch, seeds
    /// that differ only above the low 32 bits have the same order, and seed 1 in epoch 0 has that
    /// of seed 0 in epoch 1.
    Torch,
}

as_text!(Shuffle);

impl Shuffle {
    /// Whether two seeds result in the same order in every epoch.
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

/// Error: a text is not the name of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order is sequential, global, torch or block:BLOCK:WINDOW, as in block:1024:64")]
pub struct InvalidShuffle;

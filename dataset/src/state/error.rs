//! Why a state cannot be loaded.

use std::num::NonZeroU64;

use crate::Blake3Hash;
use crate::order::Shuffle;

/// Why a text is not a state, or not one of this sequence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON, lacks a key, has another one, or a value of it cannot be parsed.
    #[error("not a state of a loader: {0}")]
    Json(#[from] serde_json::Error),
    /// A version of states that this crate does not know.
    #[error("version {0} of states is not known, only 1; a newer Feedrail may know it")]
    Version(u64),
    /// The state is of another data set.
    #[error(
        "the state is of the data set {state}, but this is {current}; go on with that data set, or \
         begin without the state"
    )]
    Dataset {
        /// What the state was made with.
        state: Blake3Hash,
        /// What it should go on with.
        current: Blake3Hash,
    },
    /// The state is of another order.
    #[error("the state is of the order {state}, but this is {current}; use the order of the state")]
    Order {
        /// What the state was made with.
        state: Shuffle,
        /// What it should go on with.
        current: Shuffle,
    },
    /// The state is of another seed, and the order depends on it.
    #[error("the state is of the seed {state}, but this is {current}; use the seed of the state")]
    Seed {
        /// What the state was made with.
        state: u64,
        /// What it should go on with.
        current: u64,
    },
    /// The state is of batches of another size.
    #[error(
        "the state is of batches of {state} samples over all ranks, but these have {current}; after \
         a change of the world size, change the batch size of each rank so that the product stays"
    )]
    GlobalBatch {
        /// What the state was made with.
        state: NonZeroU64,
        /// What it should go on with.
        current: NonZeroU64,
    },
    /// More samples were consumed than there are.
    #[error("the state tells of {consumed} consumed samples, but an epoch has {samples}")]
    Consumed {
        /// What the state says.
        consumed: u64,
        /// What the data set has.
        samples: u64,
    },
}

//! Errors of loading a state.

use std::num::NonZeroU64;

use crate::Blake3Hash;
use crate::order::Shuffle;

/// Reason why a text is not a state, or is that of another sequence.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON, lacks a key, has an unknown key, or a value cannot be parsed.
    #[error("not a state of a loader: {0}")]
    Json(#[from] serde_json::Error),
    /// Unsupported version of the format.
    #[error("version {0} of states is not known, only 1; a newer Feedrail may know it")]
    Version(u64),
    /// The state is of another data set.
    #[error(
        "the state is of the data set {state}, but this is {current}; continue with that data set, \
         or begin without the state"
    )]
    Dataset {
        /// Data set of the state.
        state: Blake3Hash,
        /// Data set of the loader.
        current: Blake3Hash,
    },
    /// The state is of another order.
    #[error("the state is of the order {state}, but this is {current}; use the order of the state")]
    Order {
        /// Order of the state.
        state: Shuffle,
        /// Order of the loader.
        current: Shuffle,
    },
    /// The state is of another seed, and the order depends on it.
    #[error("the state is of the seed {state}, but this is {current}; use the seed of the state")]
    Seed {
        /// Seed of the state.
        state: u64,
        /// Seed of the loader.
        current: u64,
    },
    /// The state is of batches of another size.
    #[error(
        "the state is of batches of {state} samples over all ranks, but these have {current}; after \
         a change of the world size, change the batch size of each rank so that the product stays"
    )]
    GlobalBatch {
        /// Samples of a batch over all ranks, in the state.
        state: NonZeroU64,
        /// Samples of a batch over all ranks, in the loader.
        current: NonZeroU64,
    },
    /// More samples were consumed than there are.
    #[error("the state tells of {consumed} consumed samples, but an epoch has {samples}")]
    Consumed {
        /// Consumed samples in the state.
        consumed: u64,
        /// Samples of an epoch.
        samples: u64,
    },
}

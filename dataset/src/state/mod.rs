//! Position of a loader in its sequence of batches, and how it continues from there.
//!
//! A [`Sequence`] is all that the batches of a training run follow from. Batch `b` of an epoch has
//! the samples at positions `b * global_batch` to `(b + 1) * global_batch - 1` of the epoch's
//! [order], however many ranks and workers there are:
//!
//! - Rank `r` of `R` reads every `R`-th position of a batch, from its position `r` on. If
//!   `global_batch` is a multiple of `R` that is what `DistributedSampler` and `DataLoader` with
//!   `batch_size = global_batch / R` read; otherwise the first ranks read one sample more.
//! - Worker `w` of `W` of a rank makes every `W`-th batch, from the `w`-th after the beginning or
//!   the resumption on. `DataLoader` takes batches from its workers by turns, beginning with worker
//!   0, so that they come in the order of the sequence.
//! - The last batch of an epoch is short if the samples are no multiple of `global_batch`. With
//!   `drop_last` this batch is left out, and its samples are not read in that epoch.
//!
//! A [`State`] therefore needs no more than the epoch and the number of samples that all ranks have
//! consumed. If that lies within a batch, the rest of this batch comes first.
//!
//! As JSON a state has at most 1 KiB:
//!
//! ```json
//! {"v":1,"dataset":"blake3:5f0c…","order":"global","seed":7,"epoch":3,"consumed":614400,
//!  "global_batch":4096}
//! ```

mod batches;
mod error;

#[cfg(test)]
mod tests;

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use crate::Blake3Hash;
use crate::order::{self, Order, Shuffle};

pub use batches::Batches;
pub use error::Error;

/// The version of states that this crate reads and writes.
const VERSION: u64 = 1;

/// Parameters that determine the batches of a training run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Hash that determines the samples:
    /// [`Manifest::content_hash`](crate::manifest::Manifest::content_hash).
    pub dataset: Blake3Hash,
    /// How many samples the data set has.
    pub samples: u64,
    /// How they are put in order.
    pub shuffle: Shuffle,
    /// Seed of the order, which also depends on the epoch.
    pub seed: u64,
    /// How many samples all ranks consume in one step.
    pub global_batch: NonZeroU64,
    /// Whether samples that do not fill a batch are left out.
    pub drop_last: bool,
}

/// A place in a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// How many samples of the epoch all ranks have consumed.
    pub consumed: u64,
}

impl Sequence {
    /// The order of the samples in an epoch.
    ///
    /// # Errors
    /// The same as of [`Order::new`].
    pub fn order(&self, epoch: u64) -> Result<Order, order::Error> {
        Order::new(self.shuffle, self.samples, self.seed, epoch)
    }

    /// How many samples each epoch reads: all, or those of whole batches.
    pub fn epoch_samples(&self) -> u64 {
        let left = if self.drop_last { self.samples % self.global_batch } else { 0 };
        self.samples - left
    }

    /// The batches from a place to the end of its epoch; empty if the epoch was consumed.
    pub fn batches(&self, place: Place) -> Batches {
        Batches::new(place.consumed, self.epoch_samples(), self.global_batch)
    }

    /// The state of a loader at a place.
    pub fn state(&self, place: Place) -> State {
        let &Self { dataset, shuffle: order, seed, global_batch, .. } = self;
        let Place { epoch, consumed } = place;
        State { v: VERSION, dataset, order, seed, epoch, consumed, global_batch }
    }

    /// The place that a state tells. The state may be that of a loader with other ranks and
    /// workers.
    ///
    /// # Errors
    /// The state is that of another sequence. See [`Error`].
    pub fn resume(&self, state: &State) -> Result<Place, Error> {
        let &State { dataset, order, seed, epoch, consumed, global_batch, .. } = state;
        if dataset != self.dataset {
            return Err(Error::Dataset { state: dataset, current: self.dataset });
        }
        if order != self.shuffle {
            return Err(Error::Order { state: order, current: self.shuffle });
        }
        if !order.is_same_seed(seed, self.seed) {
            return Err(Error::Seed { state: seed, current: self.seed });
        }
        if global_batch != self.global_batch {
            return Err(Error::GlobalBatch { state: global_batch, current: self.global_batch });
        }
        if consumed > self.samples {
            return Err(Error::Consumed { consumed, samples: self.samples });
        }
        Ok(Place { epoch, consumed })
    }
}

/// The state of a loader, for a checkpoint. [`Sequence::resume`] checks whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    v: u64,
    dataset: Blake3Hash,
    #[serde(default)]
    order: Shuffle,
    seed: u64,
    epoch: u64,
    consumed: u64,
    global_batch: NonZeroU64,
}

impl State {
    /// Reads a state from JSON. A state without `order` is one of the order `global`.
    ///
    /// # Errors
    /// It fails with [`Error::Json`] or [`Error::Version`].
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct Versioned {
            v: u64,
        }
        let Versioned { v } = serde_json::from_slice(json)?;
        if v == VERSION { Ok(serde_json::from_slice(json)?) } else { Err(Error::Version(v)) }
    }

    /// The state as JSON, without white space.
    pub fn to_json(&self) -> String {
        // Only maps whose keys are no strings, and values that refuse to be written, cause errors.
        serde_json::to_string(self).unwrap_or_default()
    }
}

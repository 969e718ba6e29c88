//! Which replica of a shard is read.
//!
//! [`Placement`] says which targets a shard is best read from. It knows no connection: whoever has
//! those knows which targets are healthy and how loaded they are. The initiator takes the replicas
//! of a shard in the order that it says, and leaves out those whose circuit breaker is open.
//!
//! ```
//! use feedrail_dataset::manifest::Manifest;
//! use feedrail_dataset::placement::Placement;
//!
//! # fn main() -> Result<(), feedrail_dataset::manifest::Error> {
//! # let json = include_bytes!("../../tests/data/manifest.json");
//! let manifest = Manifest::parse(json)?;
//! let placement = Placement::new(&manifest);
//! let queued_bytes = [0, 4096];
//! let target = placement.choose(0, |_| true, |target| queued_bytes[target.0 as usize]);
//! // Where its connection is lost the next choice is the other target.
//! let other = placement.choose(0, |healthy| Some(healthy) != target, |_| 0);
//! assert_ne!(target, other);
//! # Ok(())
//! # }
//! ```

#[cfg(test)]
mod tests;

use std::cmp::Reverse;

use splitmix64::mix;

use crate::manifest::{Manifest, TargetIndex};
use crate::{Blake3Hash, Name};

/// Replicas of each shard in the order in which they are preferred (rendezvous hashing): by a hash
/// of the names of shard and target. So clients that share nothing agree, each target is preferred
/// for about as many shards as any other that has them, and when a target goes away only the shards
/// that preferred it are read elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    ranked: Vec<Box<[TargetIndex]>>,
}

impl Placement {
    /// Ranks the replicas of each shard.
    pub fn new(manifest: &Manifest) -> Self {
        let targets: Vec<u64> = manifest.targets().iter().map(|(name, _)| key(name)).collect();
        let ranked = manifest.shards().iter().map(|shard| {
            let shard_key = key(&shard.name);
            let mut replicas: Box<[TargetIndex]> = shard.replicas.as_slice().into();
            // Equal weights, if there are any, leave the order of names.
            replicas.sort_by_key(|&target| {
                (Reverse(weight(shard_key, targets[target.0 as usize])), target)
            });
            replicas
        });
        Self { ranked: ranked.collect() }
    }

    /// The replicas of a shard, the preferred one first. None if there is no such shard.
    pub fn ranked(&self, shard: u32) -> &[TargetIndex] {
        self.ranked.get(shard as usize).map_or(&[], |ranked| ranked)
    }

    /// The target to read a shard from: of the two healthy ones that are preferred most the less
    /// loaded, and at equal load the preferred. A range that is read again after a failure leaves
    /// out the target that failed by calling it unhealthy. `None` if no healthy target has the
    /// shard.
    pub fn choose<L: Ord>(
        &self,
        shard: u32,
        is_healthy: impl Fn(TargetIndex) -> bool,
        load: impl Fn(TargetIndex) -> L,
    ) -> Option<TargetIndex> {
        let healthy = self.ranked(shard).iter().copied().filter(|&target| is_healthy(target));
        // Of equal ones the first is taken.
        healthy.take(2).min_by_key(|&target| load(target))
    }
}

/// How strongly a shard prefers a target.
const fn weight(shard: u64, target: u64) -> u64 {
    mix(shard ^ mix(target))
}

/// A number that follows from a name, on every machine.
fn key(name: &Name) -> u64 {
    Blake3Hash::of(name.as_str().as_bytes()).key()
}

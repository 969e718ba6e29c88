//! Choice of the replica that a shard is read from.
//!
//! [`Placement`] ranks the targets that serve a shard. It has no connections: the caller knows
//! which targets are healthy and how loaded they are. The initiator tries the replicas of a shard
//! in this order, without those whose circuit breaker is open.
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

/// Replicas of each shard in order of preference, by a hash of the names of shard and target
/// (rendezvous hashing). So clients agree without communication, each target is preferred for about
/// the same number of shards, and when a target fails only the shards that preferred it are read
/// elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    ranked: Vec<Box<[TargetIndex]>>,
}

impl Placement {
    /// Ranks the replicas of each shard of the manifest.
    pub fn new(manifest: &Manifest) -> Self {
        let targets: Vec<u64> = manifest.targets().iter().map(|(name, _)| key(name)).collect();
        let ranked = manifest.shards().iter().map(|shard| {
            let shard_key = key(&shard.name);
            let mut replicas: Box<[TargetIndex]> = shard.replicas.as_slice().into();
            // At equal weights the order of names decides.
            replicas.sort_by_key(|&target| {
                (Reverse(weight(shard_key, targets[target.0 as usize])), target)
            });
            replicas
        });
        Self { ranked: ranked.collect() }
    }

    /// Replicas of a shard, the preferred one first; empty if there is no such shard.
    pub fn ranked(&self, shard: u32) -> &[TargetIndex] {
        self.ranked.get(shard as usize).map_or(&[], |ranked| ranked)
    }

    /// Returns the target to read a shard from: of its two most preferred healthy targets the less
    /// loaded one, and at equal load the preferred one. To exclude the target of a failed read from
    /// a retry, `is_healthy` returns false for it. `None` if no healthy target has the shard.
    pub fn choose<L: Ord>(
        &self,
        shard: u32,
        is_healthy: impl Fn(TargetIndex) -> bool,
        load: impl Fn(TargetIndex) -> L,
    ) -> Option<TargetIndex> {
        let healthy = self.ranked(shard).iter().copied().filter(|&target| is_healthy(target));
        // `min_by_key` returns the first of equal elements.
        healthy.take(2).min_by_key(|&target| load(target))
    }
}

/// Preference of a shard for a target: the target with the highest weight is preferred.
const fn weight(shard: u64, target: u64) -> u64 {
    mix(shard ^ mix(target))
}

/// Hash of a name, the same on every machine.
fn key(name: &Name) -> u64 {
    Blake3Hash::of(name.as_str().as_bytes()).key()
}

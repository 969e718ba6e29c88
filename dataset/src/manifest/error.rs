//! Errors of reading or making a manifest.

use super::file::BYTES_MAX;
use crate::{Blake3Hash, Name};

/// Reason why a manifest is not valid, or an index is not the one that it describes.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON, lacks a key, has an unknown or a duplicate key, or a value cannot be
    /// parsed. The error contains line and column.
    #[error("not a manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// Unsupported version of the format.
    #[error("version {0} of manifests is not known, only 1; a newer Feedrail may know it")]
    Version(u64),
    /// A manifest that was read has no `hash`.
    #[error("the manifest has no hash; write it with `feedrail manifest`")]
    NoHash,
    /// The `hash` does not match the rest of the manifest.
    #[error(
        "the manifest claims the hash {claimed}, but has {computed}; it was changed after it was \
         written"
    )]
    Hash {
        /// Hash stored in the manifest.
        claimed: Blake3Hash,
        /// Hash computed from the manifest.
        computed: Blake3Hash,
    },
    /// The manifest has no shards.
    #[error("the manifest has no shards")]
    NoShards,
    /// There are 2^32 or more shards or targets.
    #[error("a manifest has at most 2^32 - 1 shards and targets")]
    TooMany,
    /// Two shards have the same name.
    #[error("two shards are called {0}")]
    DuplicateShard(Name),
    /// The size of a shard is 0 or above 2^63 - 1.
    #[error("shard {shard} should have 1 to {BYTES_MAX} bytes, not {bytes}")]
    ShardBytes {
        /// Name of the shard.
        shard: Name,
        /// Size in the manifest, in bytes.
        bytes: u64,
    },
    /// The sum of all shard sizes exceeds 64 bits.
    #[error("the shards have more than 2^64 - 1 bytes together")]
    TotalBytes,
    /// A shard has no replica on any target.
    #[error("shard {0} has no replicas; name the targets that have it")]
    NoReplicas(Name),
    /// A replica refers to a target that the manifest does not have.
    #[error("shard {shard} has a replica on {target}, which is not among the targets")]
    UnknownTarget {
        /// Name of the shard.
        shard: Name,
        /// Name of the missing target.
        target: Name,
    },
    /// A shard has two replicas on the same target.
    #[error("shard {shard} has two replicas on {target}")]
    DuplicateReplica {
        /// Name of the shard.
        shard: Name,
        /// Name of the target.
        target: Name,
    },
    /// The index would be larger than a file can be, with this number of samples.
    #[error("an index cannot have {0} samples")]
    Samples(u64),
    /// An index was given, but the manifest has none.
    #[error("the manifest names no index")]
    NoIndex,
    /// The number of samples in the index is not that of the manifest.
    #[error("the manifest tells of {claimed} samples, but the index has {found}")]
    IndexSamples {
        /// Number of samples in the manifest.
        claimed: u64,
        /// Number of samples in the index.
        found: u64,
    },
    /// The hash of the index is not that of the manifest.
    #[error("the manifest claims the hash {claimed} of the index, but its bytes have {computed}")]
    IndexHash {
        /// Hash in the manifest.
        claimed: Blake3Hash,
        /// Hash of the bytes of the index.
        computed: Blake3Hash,
    },
}

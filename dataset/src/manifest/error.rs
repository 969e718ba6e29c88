//! Errors of a manifest.

use super::file::BYTES_MAX;
use crate::{Blake3Hash, Name};

/// Why a text is not a manifest, or an index is not that of the manifest.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not JSON, lacks a key, has an unknown key or one twice, or a value of it cannot
    /// be parsed. The error tells line and column.
    #[error("not a manifest: {0}")]
    Json(#[from] serde_json::Error),
    /// A version of the manifest that this crate does not know.
    #[error("version {0} of manifests is not known, only 1; a newer Feedrail may know it")]
    Version(u64),
    /// A manifest that is read has no hash.
    #[error("the manifest has no hash; write it with `feedrail manifest`")]
    NoHash,
    /// The hash is not that of the rest of the manifest.
    #[error(
        "the manifest claims the hash {claimed}, but has {computed}; it was changed after it was \
         written"
    )]
    Hash {
        /// Hash in the manifest.
        claimed: Blake3Hash,
        /// Hash of the manifest's content.
        computed: Blake3Hash,
    },
    /// A manifest needs at least one shard.
    #[error("the manifest has no shards")]
    NoShards,
    /// There are more shards or targets than 32 bits can count.
    #[error("a manifest has at most 2^32 - 1 shards and targets")]
    TooMany,
    /// Two shards have one name.
    #[error("two shards are called {0}")]
    DuplicateShard(Name),
    /// The size of a shard is 0 or no size of a file.
    #[error("shard {shard} should have 1 to {BYTES_MAX} bytes, not {bytes}")]
    ShardBytes {
        /// The name of the shard.
        shard: Name,
        /// Size in the manifest.
        bytes: u64,
    },
    /// All shards together have more bytes than 64 bits can count.
    #[error("the shards have more than 2^64 - 1 bytes together")]
    TotalBytes,
    /// A shard is on no target.
    #[error("shard {0} has no replicas; name the targets that have it")]
    NoReplicas(Name),
    /// A shard names a target that the manifest does not have.
    #[error("shard {shard} has a replica on {target}, which is not among the targets")]
    UnknownTarget {
        /// The name of the shard.
        shard: Name,
        /// The name of the target.
        target: Name,
    },
    /// A shard names a target twice.
    #[error("shard {shard} has two replicas on {target}")]
    DuplicateReplica {
        /// The name of the shard.
        shard: Name,
        /// The name of the target.
        target: Name,
    },
    /// The index would be larger than a file can be.
    #[error("an index cannot have {0} samples")]
    Samples(u64),
    /// The manifest has no index, but there is one.
    #[error("the manifest names no index")]
    NoIndex,
    /// The index has another length than the manifest says.
    #[error("the manifest tells of {claimed} samples, but the index has {found}")]
    IndexSamples {
        /// Number in the manifest.
        claimed: u64,
        /// Number in the index.
        found: u64,
    },
    /// The index is not the one of the manifest.
    #[error("the manifest claims the hash {claimed} of the index, but its bytes have {computed}")]
    IndexHash {
        /// Hash in the manifest.
        claimed: Blake3Hash,
        /// Hash of the index's bytes.
        computed: Blake3Hash,
    },
}

//! Checks that the parts of a manifest are consistent, and hashes them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::file::{BYTES_MAX, Crc32c, IndexEntry, ManifestFile, ShardEntry, TargetEntry, VERSION};
use super::{Error, Manifest, TargetIndex};
use crate::{Blake3Hash, Name, Sample};

/// Implements [`Manifest::new`]: checks, then hashes.
pub(super) fn manifest(file: ManifestFile) -> Result<Manifest, Error> {
    if file.version != VERSION {
        return Err(Error::Version(file.version));
    }
    check_sizes(&file)?;
    check_names(&file.shards)?;
    let numbers = numbers(&file.targets);
    let shards =
        file.shards.iter().map(|entry| shard(entry, &numbers)).collect::<Result<_, _>>()?;
    let content_hash = content_hash(&file);
    let file = ManifestFile { hash: None, ..file };
    let hash = canonical_hash(&file);
    let targets = file.targets.into_iter().collect();
    Ok(Manifest { name: file.name, hash, content_hash, targets, shards, index: file.index })
}

fn check_sizes(file: &ManifestFile) -> Result<(), Error> {
    if file.shards.is_empty() {
        return Err(Error::NoShards);
    }
    if u32::try_from(file.shards.len().max(file.targets.len())).is_err() {
        return Err(Error::TooMany);
    }
    let bytes = file.shards.iter().try_fold(0, |sum: u64, shard| sum.checked_add(shard.bytes));
    bytes.ok_or(Error::TotalBytes)?;
    let samples = file.index.as_ref().map_or(0, |index| index.samples);
    let is_size = samples <= BYTES_MAX / size_of::<Sample>() as u64;
    if is_size { Ok(()) } else { Err(Error::Samples(samples)) }
}

fn check_names(shards: &[ShardEntry<Name>]) -> Result<(), Error> {
    let mut names = BTreeSet::new();
    match shards.iter().find(|shard| !names.insert(&shard.name)) {
        Some(shard) => Err(Error::DuplicateShard(shard.name.clone())),
        None => Ok(()),
    }
}

fn numbers(targets: &BTreeMap<Name, TargetEntry>) -> BTreeMap<&Name, TargetIndex> {
    targets.keys().zip((0..).map(TargetIndex)).collect()
}

/// Checks a shard, and replaces the names of its targets by their numbers.
fn shard(
    entry: &ShardEntry<Name>,
    numbers: &BTreeMap<&Name, TargetIndex>,
) -> Result<ShardEntry<TargetIndex>, Error> {
    let name = || entry.name.clone();
    if !(1..=BYTES_MAX).contains(&entry.bytes) {
        return Err(Error::ShardBytes { shard: name(), bytes: entry.bytes });
    }
    if entry.replicas.is_empty() {
        return Err(Error::NoReplicas(name()));
    }
    let mut seen = BTreeSet::new();
    for target in &entry.replicas {
        if !numbers.contains_key(target) {
            return Err(Error::UnknownTarget { shard: name(), target: target.clone() });
        }
        if !seen.insert(target) {
            return Err(Error::DuplicateReplica { shard: name(), target: target.clone() });
        }
    }
    Ok(entry.with_replicas(|target| numbers[target]))
}

/// Input of [`Manifest::content_hash`], with fields in canonical order.
#[derive(Serialize)]
struct ContentParts<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<IndexContent>,
    shards: Vec<ShardContent<'a>>,
}

#[derive(Serialize)]
struct IndexContent {
    hash: Blake3Hash,
    samples: u64,
}

#[derive(Serialize)]
struct ShardContent<'a> {
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    crc32c: Option<Crc32c>,
    name: &'a Name,
}

fn content_hash(file: &ManifestFile) -> Blake3Hash {
    let index = |&IndexEntry { hash, samples, .. }: &IndexEntry| IndexContent { hash, samples };
    let shards = file.shards.iter().map(shard_content).collect();
    canonical_hash(&ContentParts { index: file.index.as_ref().map(index), shards })
}

fn shard_content(shard: &ShardEntry<Name>) -> ShardContent<'_> {
    ShardContent { bytes: shard.bytes, crc32c: shard.crc32c, name: &shard.name }
}

/// Hashes the canonical form of a value, whose type must declare its fields in canonical order.
fn canonical_hash(content: &impl Serialize) -> Blake3Hash {
    // Serialization to memory cannot fail for these types.
    Blake3Hash::of(&serde_json::to_vec(content).unwrap_or_default())
}

//! `manifest.json`: which shards a data set has, and which targets have them.
//!
//! ```json
//! {
//!   "hash": "blake3:5f0c…",
//!   "index": { "file": "index.npy", "hash": "blake3:91ab…", "samples": 1281167 },
//!   "name": "imagenet",
//!   "shards": [
//!     { "bytes": 256000492, "crc32c": "9a71bb4c", "generation": "00000000000000ff",
//!       "name": "000.tar", "replicas": ["a", "b"],
//!       "uuid": "67e55044-10b1-426f-9247-bb680e5fe0c8" }
//!   ],
//!   "targets": {
//!     "a": { "nqn": "nqn.2026-01.org.example:a", "url": "nvmf://192.0.2.1" },
//!     "b": { "nqn": "nqn.2026-01.org.example:b", "url": "nvmf://[2001:db8::2]:4421" }
//!   },
//!   "version": 1
//! }
//! ```
//!
//! | key | what it is | may be left out |
//! |---|---|---|
//! | `version` | 1 | no |
//! | `hash` | hash of all else, see below | no |
//! | `name` | a [`Name`] | no |
//! | `targets` | by name: `url` of the [target](crate::url) and `nqn` of a subsystem | no |
//! | `shards` | in the order in which samples of an index without names count them | no |
//! | `shards[].name` | name of the file and of its namespaces, unique | no |
//! | `shards[].bytes` | exact size, 1 to 2^63 - 1 | no |
//! | `shards[].replicas` | names of targets that have the shard, at least one, none twice | no |
//! | `shards[].uuid` | UUID of the namespace, if it is the same on all targets | yes |
//! | `shards[].generation` | what all targets report as generation, 16 hexadecimal digits | yes |
//! | `shards[].crc32c` | CRC-32C of all its bytes, 8 hexadecimal digits | yes |
//! | `index` | the [index]; data sets of tokens have none | yes |
//! | `index.file` | path from the folder of the manifest, without `..` | no |
//! | `index.samples` | how many samples it has | no |
//! | `index.hash` | hash of the bytes of the file, as `b3sum` computes it | no |
//!
//! Other keys are refused, as are keys that come twice.
//!
//! # The hash
//! `hash` is the BLAKE3 hash of the manifest without `hash` in canonical form. The canonical form
//! is JSON in UTF-8 without white space, with the keys of each object in the order of their code
//! points, and without keys that have no value. Numbers are decimal. Strings escape `"`, `\` and
//! nothing else, since none has control characters. Within strings, host names and hexadecimal
//! digits are in lower case, addresses are as RFC 5952 writes them, and a URL has its port unless
//! that is 4420. [`Manifest::to_json`] writes all strings so, with keys in the same order. Python
//! computes the hash of what it wrote with
//!
//! ```python
//! del manifest["hash"]
//! text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
//! "blake3:" + blake3.blake3(text.encode()).hexdigest()
//! ```
//!
//! [`Manifest::content_hash`] leaves out where shards are, so that it stays the same when a target
//! moves or a replica is added.

mod error;
mod file;
mod resolve;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use file::{
    Crc32c, Generation, IndexEntry, ManifestFile, RelativePath, ShardEntry, TargetEntry,
};

use crate::index::{self, Index, IndexShard};
use crate::{Blake3Hash, Name};

/// The number of a target in a manifest: its place in the order of names, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetIndex(pub u32);

/// A manifest whose parts fit together: names are unique, every replica names an existing target,
/// and the hash is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    name: Name,
    hash: Blake3Hash,
    content_hash: Blake3Hash,
    targets: Vec<(Name, TargetEntry)>,
    shards: Vec<ShardEntry<TargetIndex>>,
    index: Option<IndexEntry>,
}

impl Manifest {
    /// Reads the text of a manifest.
    ///
    /// # Errors
    /// The first rule that the text breaks. See [`Error`].
    pub fn parse(json: &[u8]) -> Result<Self, Error> {
        let file = ManifestFile::parse(json)?;
        let claimed = file.hash.ok_or(Error::NoHash)?;
        let manifest = Self::new(file)?;
        if manifest.hash != claimed {
            return Err(Error::Hash { claimed, computed: manifest.hash });
        }
        Ok(manifest)
    }

    /// Makes a manifest of its parts, and computes its hash.
    ///
    /// # Errors
    /// The first rule that the parts break together. See [`Error`].
    pub fn new(file: ManifestFile) -> Result<Self, Error> {
        resolve::manifest(file)
    }

    /// The text of the manifest, which is the same for the same manifest: keys in the order of the
    /// canonical form, two spaces for each level, a line feed at the end.
    pub fn to_json(&self) -> String {
        ManifestFile { hash: Some(self.hash), ..self.to_file() }.to_json()
    }

    /// The parts of the manifest, to change them. They have no hash.
    pub fn to_file(&self) -> ManifestFile {
        let replica = |target: &TargetIndex| self.targets[target.0 as usize].0.clone();
        let shard = |shard: &ShardEntry<TargetIndex>| shard.with_replicas(replica);
        ManifestFile {
            hash: None,
            index: self.index.clone(),
            name: self.name.clone(),
            shards: self.shards.iter().map(shard).collect(),
            targets: self.targets.iter().cloned().collect(),
            version: file::VERSION,
        }
    }

    /// The name of the data set.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The hash of the manifest without its hash.
    pub fn hash(&self) -> Blake3Hash {
        self.hash
    }

    /// The hash of what the bytes and numbers of samples follow from: name, size and CRC of each
    /// shard, and length and hash of the index. It is that of the canonical form of a manifest with
    /// only `index.hash`, `index.samples`, `shards[].bytes`, `shards[].crc32c` and `shards[].name`.
    pub fn content_hash(&self) -> Blake3Hash {
        self.content_hash
    }

    /// The targets with their names, in the order of names.
    pub fn targets(&self) -> &[(Name, TargetEntry)] {
        &self.targets
    }

    /// The shards, in the order in which samples count them.
    pub fn shards(&self) -> &[ShardEntry<TargetIndex>] {
        &self.shards
    }

    /// The size of each shard in bytes, as [`Index::check`] takes them.
    pub fn shard_bytes(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.bytes).collect()
    }

    /// The shards as an index describes them.
    pub fn described(&self) -> Vec<IndexShard> {
        self.shards.iter().map(ShardEntry::described).collect()
    }

    /// Checks that the samples of an index lie in the shards, which are found by name where the
    /// index has a table of shards. All samples are looked at.
    ///
    /// # Errors
    /// The first shard that differs from the index's, or the first sample outside its shard.
    pub fn check_samples<B: AsRef<[u8]>>(&self, index: &Index<B>) -> Result<(), index::Error> {
        let Some(table) = index.shards() else { return index.check(&self.shard_bytes()) };
        table.numbers_in(&self.described())?;
        index.check(&table.shard_bytes())
    }

    /// The index, unless the data set has none.
    pub fn index(&self) -> Option<&IndexEntry> {
        self.index.as_ref()
    }

    /// Checks that an index is the one of this manifest. All its bytes are read for the hash.
    ///
    /// # Errors
    /// [`Error::NoIndex`], [`Error::IndexSamples`] or [`Error::IndexHash`].
    pub fn check_index<B: AsRef<[u8]>>(&self, index: &Index<B>) -> Result<(), Error> {
        let entry = self.index.as_ref().ok_or(Error::NoIndex)?;
        let (claimed, found) = (entry.samples, index.len());
        if claimed != found {
            return Err(Error::IndexSamples { claimed, found });
        }
        let (claimed, computed) = (entry.hash, Blake3Hash::of(index.file()));
        if claimed == computed { Ok(()) } else { Err(Error::IndexHash { claimed, computed }) }
    }
}

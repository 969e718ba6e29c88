//! `manifest.json`: the shards of a data set, and the targets that serve them.
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
//! | `targets.*.dhchap_secret_file` | absolute path of a file with the secret of hosts | yes |
//! | `targets.*.dhchap_ctrl_secret_file` | likewise, with the secret of the target | yes |
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
mod key_path;
mod resolve;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use file::{
    Crc32c, Generation, IndexEntry, ManifestFile, RelativePath, ShardEntry, TargetEntry,
};
pub use key_path::{InvalidKeyPath, KeyPath};

use crate::index::{self, Index, IndexShard};
use crate::{Blake3Hash, Name};

/// Number of a target in a manifest: its position in the order of names, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetIndex(pub u32);

/// Manifest whose parts are consistent: names are unique, every replica refers to a target of the
/// manifest, and the hash is right.
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
    /// Parses the text of a manifest and verifies its hash.
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

    /// Checks that parts are consistent, and computes the hash of the manifest.
    ///
    /// # Errors
    /// The first rule that the parts break. See [`Error`].
    pub fn new(file: ManifestFile) -> Result<Self, Error> {
        resolve::manifest(file)
    }

    /// Returns the text of the manifest, which is the same for equal manifests: keys in the order
    /// of the canonical form, two spaces for each level, a final line feed.
    pub fn to_json(&self) -> String {
        ManifestFile { hash: Some(self.hash), ..self.to_file() }.to_json()
    }

    /// Returns the parts of the manifest without a hash, for the caller to change them.
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

    /// Name of the data set.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Hash of the manifest without `hash`, in canonical form.
    pub fn hash(&self) -> Blake3Hash {
        self.hash
    }

    /// Hash of all that determines the bytes and the numbers of samples: name, size and CRC-32C of
    /// each shard, and number of samples and hash of the index. It is the hash of the canonical
    /// form of a manifest with only `index.hash`, `index.samples`, `shards[].bytes`,
    /// `shards[].crc32c` and `shards[].name`.
    pub fn content_hash(&self) -> Blake3Hash {
        self.content_hash
    }

    /// Targets with their names, sorted by name. A [`TargetIndex`] is an index into this slice.
    pub fn targets(&self) -> &[(Name, TargetEntry)] {
        &self.targets
    }

    /// Shards, in the order of their numbers in samples.
    pub fn shards(&self) -> &[ShardEntry<TargetIndex>] {
        &self.shards
    }

    /// Size of each shard in bytes, as [`Index::check`] takes them.
    pub fn shard_bytes(&self) -> Vec<u64> {
        self.shards.iter().map(|shard| shard.bytes).collect()
    }

    /// Descriptions of the shards, to compare them with those of an index.
    pub fn described(&self) -> Vec<IndexShard> {
        self.shards.iter().map(ShardEntry::described).collect()
    }

    /// Checks that all samples of an index lie within the shards. If the index has a table of
    /// shards, these are matched by name.
    ///
    /// # Errors
    /// The first shard that differs from that of the index, or the first sample that is not within
    /// its shard.
    pub fn check_samples<B: AsRef<[u8]>>(&self, index: &Index<B>) -> Result<(), index::Error> {
        let Some(table) = index.shards() else { return index.check(&self.shard_bytes()) };
        table.numbers_in(&self.described())?;
        index.check(&table.shard_bytes())
    }

    /// Entry for the index; `None` if the data set has none.
    pub fn index(&self) -> Option<&IndexEntry> {
        self.index.as_ref()
    }

    /// Checks that an index is the one of this manifest. It reads the whole index, to hash it.
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

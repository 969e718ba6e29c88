//! Parts of a manifest, as they are in the file.
//!
//! Fields are declared in the order of the canonical form, since `serde_json` writes them in this
//! order.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

use nvme_proto::Nqn;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::Error;
use super::key_path::KeyPath;
use crate::index::IndexShard;
use crate::text::{self, as_text};
use crate::url::TargetUrl;
use crate::{Blake3Hash, Name};

/// Version of the format that this crate reads and writes.
pub(super) const VERSION: u64 = 1;

/// Maximum size of a file, and so of a shard, in bytes.
pub(super) const BYTES_MAX: u64 = i64::MAX as u64;

/// Manifest whose parts are valid one by one, but may contradict each other:
/// [`Manifest::new`](super::Manifest::new) checks that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// Hash of all other keys; `None` if it was not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Blake3Hash>,
    /// Index of the data set; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexEntry>,
    /// Name of the data set.
    pub name: Name,
    /// Shards, in the order of their numbers in samples. Replicas are names of targets.
    pub shards: Vec<ShardEntry<Name>>,
    /// Targets by their names, which only this manifest uses.
    #[serde(deserialize_with = "without_duplicates")]
    pub targets: BTreeMap<Name, TargetEntry>,
    /// Version of the format, 1.
    pub version: u64,
}

impl ManifestFile {
    /// Creates a manifest without shards and targets, to which the caller adds them.
    pub fn new(name: Name) -> Self {
        let (shards, targets) = (Vec::new(), BTreeMap::new());
        Self { hash: None, index: None, name, shards, targets, version: VERSION }
    }

    /// Parses the version first, since other versions may have other keys, and then the whole text.
    pub(super) fn parse(json: &[u8]) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct VersionOnly {
            version: u64,
        }
        let VersionOnly { version } = serde_json::from_slice(json)?;
        if version != VERSION {
            return Err(Error::Version(version));
        }
        Ok(serde_json::from_slice(json)?)
    }

    /// Returns the text for a file, with a final line feed.
    pub(super) fn to_json(&self) -> String {
        // Serialization fails only for maps with keys that are not strings, and for types that
        // return errors. Neither is used here.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }
}

/// Address of a target, and the subsystem that serves the shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetEntry {
    /// File with the secret with which the target has to prove who it is; `None` if it need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_ctrl_secret_file: Option<KeyPath>,
    /// File with the secret with which hosts authenticate; `None` if the target does not require
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhchap_secret_file: Option<KeyPath>,
    /// NQN of the subsystem whose namespaces are shards.
    #[serde(deserialize_with = "text::deserialize", serialize_with = "verbatim")]
    pub nqn: Nqn,
    /// Address at which the target listens.
    pub url: TargetUrl,
}

/// Shard in a manifest. `Replica` is the name of a target in a [`ManifestFile`], and its number in
/// a [`Manifest`](super::Manifest).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry<Replica> {
    /// Exact size in bytes.
    pub bytes: u64,
    /// CRC-32C of all its bytes; `None` if it was not computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<Crc32c>,
    /// Generation that all targets report; `None` if they report none or different ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Name of the file, and of the namespaces that serve it.
    pub name: Name,
    /// Targets that serve the shard.
    pub replicas: Vec<Replica>,
    /// UUID of the namespaces; `None` if they have none or different ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
}

impl<R> ShardEntry<R> {
    /// Description of the shard for an index.
    pub fn described(&self) -> IndexShard {
        let &Self { bytes, crc32c, generation, ref name, uuid, .. } = self;
        IndexShard { bytes, crc32c, generation, name: name.clone(), samples: 0, uuid }
    }

    /// Copies the entry, with each replica converted by `replica`.
    pub(super) fn with_replicas<S>(&self, replica: impl FnMut(&R) -> S) -> ShardEntry<S> {
        let replicas = self.replicas.iter().map(replica).collect();
        let &Self { bytes, crc32c, generation, ref name, uuid, .. } = self;
        ShardEntry { bytes, crc32c, generation, name: name.clone(), replicas, uuid }
    }
}

/// Entry for the index of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexEntry {
    /// Path of the index, relative to the folder of the manifest.
    pub file: RelativePath,
    /// BLAKE3 hash of the index file.
    pub hash: Blake3Hash,
    /// Number of samples in the index.
    pub samples: u64,
}

/// Relative path that cannot leave its folder: names separated by slashes, none of them `.`, `..`
/// or empty, without backslashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelativePath(Name);

as_text!(RelativePath);

impl RelativePath {
    /// Returns the path, with slashes between its names.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for RelativePath {
    type Err = InvalidPath;

    fn from_str(path: &str) -> Result<Self, InvalidPath> {
        let is_name = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\\');
        let is_relative = path.split('/').all(is_name);
        is_relative.then(|| path.parse().ok()).flatten().map(Self).ok_or(InvalidPath)
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Error: a text is not a relative path within a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file of the index should be a relative path without \".\", \"..\" and backslashes")]
pub struct InvalidPath;

/// Generation of a namespace, as a Feedrail target reports it. Its text form is 16 hexadecimal
/// digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(pub u64);

as_text!(Generation);

impl FromStr for Generation {
    type Err = InvalidDigits;

    fn from_str(text: &str) -> Result<Self, InvalidDigits> {
        hexadecimal(text, 16).map(Self)
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// CRC-32C (Castagnoli polynomial). Its text form is 8 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Crc32c(pub u32);

as_text!(Crc32c);

impl FromStr for Crc32c {
    type Err = InvalidDigits;

    fn from_str(text: &str) -> Result<Self, InvalidDigits> {
        hexadecimal(text, 8).map(|number| Self(number as u32))
    }
}

impl fmt::Display for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

/// Serializes an NQN unescaped, while its `Display` escapes unprintable characters.
fn verbatim<S: Serializer>(nqn: &Nqn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(nqn.as_str())
}

fn hexadecimal(text: &str, digits: usize) -> Result<u64, InvalidDigits> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_number);
    number.ok_or(InvalidDigits { digits })
}

/// Error: a text has not the expected number of hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there should be {digits} hexadecimal digits")]
pub struct InvalidDigits {
    digits: usize,
}

/// Deserializes targets by name. A duplicate name is an error; `serde_json` alone would keep the
/// last.
fn without_duplicates<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<Name, TargetEntry>, D::Error> {
    struct Targets;

    impl<'de> Visitor<'de> for Targets {
        type Value = BTreeMap<Name, TargetEntry>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("targets by name")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut targets = BTreeMap::new();
            while let Some(name) = map.next_key::<Name>()? {
                match targets.entry(name) {
                    Entry::Vacant(vacant) => drop(vacant.insert(map.next_value()?)),
                    Entry::Occupied(taken) => {
                        let name = taken.key();
                        return Err(A::Error::custom(format!("two targets are called {name}")));
                    }
                }
            }
            Ok(targets)
        }
    }

    deserializer.deserialize_map(Targets)
}

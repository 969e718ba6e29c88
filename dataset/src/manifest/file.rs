//! The parts of a manifest, as the file has them.
//!
//! The fields are in the order of the canonical form, and `serde_json` writes them so.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::str::FromStr;

use nvme_proto::Nqn;
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::Error;
use crate::index::IndexShard;
use crate::text::{self, as_text};
use crate::url::TargetUrl;
use crate::{Blake3Hash, Name};

/// The version of manifests that this crate reads and writes.
pub(super) const VERSION: u64 = 1;

/// The largest size of a file, and of a shard.
pub(super) const BYTES_MAX: u64 = i64::MAX as u64;

/// A manifest whose parts are valid by themselves, but may not fit together:
/// [`Manifest::new`](super::Manifest::new) checks that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestFile {
    /// The hash of all else, if it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Blake3Hash>,
    /// The index, unless the data set has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<IndexEntry>,
    /// The name of the data set.
    pub name: Name,
    /// The shards, in the order in which samples count them. Replicas are names of targets.
    pub shards: Vec<ShardEntry<Name>>,
    /// The targets by their names, which only the manifest uses.
    #[serde(deserialize_with = "without_duplicates")]
    pub targets: BTreeMap<Name, TargetEntry>,
    /// The version of the format, 1.
    pub version: u64,
}

impl ManifestFile {
    /// A manifest without shards and targets, for a builder to add them.
    pub fn new(name: Name) -> Self {
        let (shards, targets) = (Vec::new(), BTreeMap::new());
        Self { hash: None, index: None, name, shards, targets, version: VERSION }
    }

    /// Reads the text, the version first: other versions may have other keys.
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

    /// The text as it is written to a file.
    pub(super) fn to_json(&self) -> String {
        // Only maps whose keys are no strings, and values that refuse to be written, cause errors.
        let mut json = serde_json::to_string_pretty(self).unwrap_or_default();
        json.push('\n');
        json
    }
}

/// Where a target listens, and which of its subsystems has the shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetEntry {
    /// The name of the subsystem whose namespaces are shards.
    #[serde(deserialize_with = "text::deserialize", serialize_with = "verbatim")]
    pub nqn: Nqn,
    /// Where the target listens.
    pub url: TargetUrl,
}

/// One shard. A replica is the name of a target in a file, and its number in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardEntry<Replica> {
    /// The exact size in bytes.
    pub bytes: u64,
    /// The CRC-32C of all its bytes, if it was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<Crc32c>,
    /// The generation that all targets report, unless they report none or several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The name of the file, and of the namespaces that are made of it.
    pub name: Name,
    /// The targets that have it.
    pub replicas: Vec<Replica>,
    /// The UUID of the namespaces, unless they have none or several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
}

impl<R> ShardEntry<R> {
    /// The shard as an index describes it.
    pub fn described(&self) -> IndexShard {
        let &Self { bytes, crc32c, generation, ref name, uuid, .. } = self;
        IndexShard { bytes, crc32c, generation, name: name.clone(), samples: 0, uuid }
    }

    /// Copies the entry with each replica converted by `replica`.
    pub(super) fn with_replicas<S>(&self, replica: impl FnMut(&R) -> S) -> ShardEntry<S> {
        let replicas = self.replicas.iter().map(replica).collect();
        let &Self { bytes, crc32c, generation, ref name, uuid, .. } = self;
        ShardEntry { bytes, crc32c, generation, name: name.clone(), replicas, uuid }
    }
}

/// The index of a data set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexEntry {
    /// Where the index is, from the folder of the manifest.
    pub file: RelativePath,
    /// The hash of the bytes of the file.
    pub hash: Blake3Hash,
    /// How many samples it has.
    pub samples: u64,
}

/// A path that stays within the folder that it begins in: names between slashes, none of them `.`,
/// `..` or empty, without backslashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelativePath(Name);

as_text!(RelativePath);

impl RelativePath {
    /// The path, with slashes between its names.
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

/// A text that is no path within a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the file of the index should be a relative path without \".\", \"..\" and backslashes")]
pub struct InvalidPath;

/// The generation of a namespace, as a Feedrail target reports it. As text it has 16 hexadecimal
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

/// A CRC-32C (polynomial of Castagnoli). As text it has 8 hexadecimal digits.
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

/// Writes a name as it is; as it displays, letters that a terminal does not show are escaped.
fn verbatim<S: Serializer>(nqn: &Nqn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(nqn.as_str())
}

fn hexadecimal(text: &str, digits: usize) -> Result<u64, InvalidDigits> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_number);
    number.ok_or(InvalidDigits { digits })
}

/// A text that does not have the hexadecimal digits that it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there should be {digits} hexadecimal digits")]
pub struct InvalidDigits {
    digits: usize,
}

/// Reads targets by name. A name that comes twice is an error, where `serde_json` would take the
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

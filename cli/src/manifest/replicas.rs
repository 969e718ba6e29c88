//! Shards of one name as replicas of one shard.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use feedrail_dataset::Name;
use feedrail_dataset::manifest::{Crc32c, Generation, ShardEntry};
use uuid::Uuid;

use crate::shards::{ListedShard, ShardLocation};

/// What is known of a shard in one place.
#[derive(Clone, Debug)]
pub(super) struct ShardReplica {
    bytes: u64,
    uuid: Option<Uuid>,
    generation: Option<Generation>,
    crc32c: Option<u32>,
    /// The targets that have it there: one, or for a file all that were given.
    on: Vec<Name>,
}

impl ShardReplica {
    pub(super) fn new(shard: &ListedShard, crc32c: Option<u32>, on: Vec<Name>) -> Self {
        let (uuid, generation) = match &shard.place {
            ShardLocation::File(_) => (None, None),
            ShardLocation::Namespace { namespace, .. } => {
                let info = namespace.info();
                (info.uuid.map(Uuid::from_bytes), info.generation.map(Generation))
            }
        };
        Self { bytes: shard.bytes, uuid, generation, crc32c, on }
    }
}

/// Replicas by the name of their shard, in the order of the first of each.
#[derive(Debug, Default)]
pub(super) struct ReplicaGroups {
    groups: Vec<(Name, Vec<ShardReplica>)>,
    /// Where the group of a name is.
    numbers: BTreeMap<Name, usize>,
}

impl ReplicaGroups {
    /// # Errors
    /// The shard has another length, another checksum, or another UUID and no checksum than its
    /// replicas before.
    pub(super) fn add(&mut self, name: &Name, replica: ShardReplica) -> Result<()> {
        let number = *self.numbers.entry(name.clone()).or_insert(self.groups.len());
        let Some((_, group)) = self.groups.get_mut(number) else {
            self.groups.push((name.clone(), vec![replica]));
            return Ok(());
        };
        for other in group.iter() {
            check_same(name, other, &replica)?;
        }
        group.push(replica);
        Ok(())
    }

    /// # Errors
    /// A shard is on no target.
    pub(super) fn into_shards(self) -> Result<Vec<ShardEntry<Name>>> {
        self.groups.into_iter().map(|(name, group)| shard(name, &group)).collect()
    }
}

fn check_same(name: &Name, one: &ShardReplica, other: &ShardReplica) -> Result<()> {
    let (bytes, other_bytes) = (one.bytes, other.bytes);
    ensure!(bytes == other_bytes, "one shard {name} has {bytes} bytes, another {other_bytes}");
    if let (Some(crc), Some(other)) = (one.crc32c, other.crc32c) {
        ensure!(crc == other, "one shard {name} has the CRC-32C {crc:08x}, another {other:08x}");
        return Ok(());
    }
    match (one.uuid, other.uuid) {
        (Some(uuid), Some(other)) if uuid == other => Ok(()),
        _ => bail!("shards called {name} do not have one UUID; compare their bytes with --crc"),
    }
}

fn shard(name: Name, group: &[ShardReplica]) -> Result<ShardEntry<Name>> {
    let mut replicas: Vec<Name> = Vec::new();
    for target in group.iter().flat_map(|replica| &replica.on) {
        if !replicas.contains(target) {
            replicas.push(target.clone());
        }
    }
    ensure!(!replicas.is_empty(), "no target has {name}; say with --target which ones have it");
    let remote = || group.iter().filter(|replica| replica.generation.is_some());
    Ok(ShardEntry {
        bytes: group.first().map_or(0, |replica| replica.bytes),
        crc32c: group.iter().find_map(|replica| replica.crc32c).map(Crc32c),
        generation: the_same(remote().map(|replica| replica.generation)),
        uuid: the_same(group.iter().filter(|r| r.uuid.is_some()).map(|replica| replica.uuid)),
        name,
        replicas,
    })
}

/// The value that all have, if there is one.
fn the_same<T: PartialEq>(mut values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let first = values.next().flatten()?;
    values.all(|value| value.as_ref() == Some(&first)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(on: &str) -> ShardReplica {
        let on = vec![on.parse().unwrap()];
        let uuid = Some(Uuid::from_u128(1));
        ShardReplica { bytes: 9, uuid, generation: Some(Generation(7)), crc32c: None, on }
    }

    fn groups(replicas: &[ShardReplica]) -> Result<Vec<ShardEntry<Name>>> {
        let mut groups = ReplicaGroups::default();
        for replica in replicas {
            groups.add(&"a.tar".parse().unwrap(), replica.clone())?;
        }
        groups.into_shards()
    }

    #[test]
    fn replicas_of_one_uuid_are_one_shard() {
        let shards = groups(&[replica("a"), replica("b"), replica("a")]).unwrap();
        assert_eq!(shards.len(), 1);
        assert_eq!(shards[0].replicas, ["a", "b"].map(|name| name.parse().unwrap()));
        assert_eq!(
            (shards[0].uuid, shards[0].generation),
            (Some(Uuid::from_u128(1)), Some(Generation(7)))
        );
    }

    #[test]
    fn other_bytes_are_no_replica() {
        let longer = ShardReplica { bytes: 10, ..replica("b") };
        assert!(groups(&[replica("a"), longer]).unwrap_err().to_string().contains("10"));
        let other = ShardReplica { uuid: Some(Uuid::from_u128(2)), ..replica("b") };
        let error = groups(&[replica("a"), other.clone()]).unwrap_err();
        assert!(error.to_string().contains("--crc"), "{error}");
        let with_crc = |replica: ShardReplica, crc| ShardReplica { crc32c: Some(crc), ..replica };
        let error = groups(&[with_crc(replica("a"), 1), with_crc(replica("b"), 2)]).unwrap_err();
        assert!(error.to_string().contains("00000002"), "{error}");
        let shards = groups(&[with_crc(replica("a"), 1), with_crc(other, 1)]).unwrap();
        assert_eq!((shards[0].uuid, shards[0].crc32c), (None, Some(Crc32c(1))));
    }

    #[test]
    fn a_shard_needs_a_target() {
        let file = ShardReplica { on: Vec::new(), uuid: None, ..replica("a") };
        assert!(groups(&[file]).unwrap_err().to_string().contains("--target"));
    }
}

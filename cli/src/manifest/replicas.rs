//! Groups shards of one name as replicas of one shard, and checks that they are the same.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use feedrail_dataset::Name;
use feedrail_dataset::manifest::{Crc32c, Generation, ShardEntry};
use uuid::Uuid;

use crate::shards::ListedShard;

/// Copy of a shard in a subsystem or a file.
#[derive(Clone, Debug)]
pub(super) struct ShardReplica {
    bytes: u64,
    uuid: Option<Uuid>,
    generation: Option<Generation>,
    crc32c: Option<u32>,
    /// Targets that serve the copy: one for a namespace; for a file those of all `--target`
    /// options.
    on: Vec<Name>,
}

impl ShardReplica {
    pub(super) fn new(shard: &ListedShard, crc32c: Option<u32>, on: Vec<Name>) -> Self {
        let known = shard.described();
        Self { bytes: shard.bytes, uuid: known.uuid, generation: known.generation, crc32c, on }
    }

    /// Names of the targets, for error messages.
    fn targets(&self) -> String {
        match &self.on[..] {
            [] => "no target".to_owned(),
            on => on.iter().map(Name::as_str).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Replicas grouped by shard name, in the order in which the names first appeared.
#[derive(Debug, Default)]
pub(super) struct ReplicaGroups {
    groups: Vec<(Name, Vec<ShardReplica>)>,
    /// Index of each name in `groups`.
    numbers: BTreeMap<Name, usize>,
}

impl ReplicaGroups {
    /// # Errors
    /// The shard differs in length or checksum from an earlier replica, or has no checksum and
    /// differs in UUID or generation.
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
    /// No target serves one of the shards.
    pub(super) fn into_shards(self) -> Result<Vec<ShardEntry<Name>>> {
        self.groups.into_iter().map(|(name, group)| shard(name, &group)).collect()
    }
}

/// Checks that two replicas have the same bytes. Equal checksums prove it, whatever else differs;
/// without them UUID and generation must be equal.
fn check_same(name: &Name, one: &ShardReplica, other: &ShardReplica) -> Result<()> {
    let (on, other_on) = (one.targets(), other.targets());
    let (bytes, other_bytes) = (one.bytes, other.bytes);
    ensure!(
        bytes == other_bytes,
        "{name} has {bytes} bytes on {on}, and {other_bytes} on {other_on}"
    );
    if let (Some(crc), Some(other)) = (one.crc32c, other.crc32c) {
        ensure!(
            crc == other,
            "{name} has the CRC-32C {crc:08x} on {on}, and {other:08x} on {other_on}"
        );
        return Ok(());
    }
    ensure!(
        one.uuid.is_some() && one.uuid == other.uuid,
        "{name} does not have one UUID: {} on {on}, {} on {other_on}; compare the bytes with --crc",
        shown(one.uuid),
        shown(other.uuid)
    );
    match (one.generation, other.generation) {
        (Some(generation), Some(other)) if generation != other => bail!(
            "{name} has the generation {generation} on {on}, and {other} on {other_on}: one of them \
             may have changed; compare the bytes with --crc, or give both the same content_id"
        ),
        _ => Ok(()),
    }
}

fn shown(uuid: Option<Uuid>) -> String {
    uuid.map_or_else(|| "none".to_owned(), |uuid| uuid.to_string())
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
        let error = groups(&[replica("a"), longer]).unwrap_err().to_string();
        assert_eq!(error, "a.tar has 9 bytes on a, and 10 on b");
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
    fn another_generation_is_an_error_unless_bytes_were_compared() {
        let changed = ShardReplica { generation: Some(Generation(8)), ..replica("b") };
        let error = groups(&[replica("a"), changed.clone()]).unwrap_err().to_string();
        let expected = "a.tar has the generation 0000000000000007 on a, and 0000000000000008 on b";
        assert!(error.starts_with(expected) && error.contains("content_id"), "{error}");
        // A target of others tells none.
        let foreign = ShardReplica { generation: None, ..replica("b") };
        let shards = groups(&[replica("a"), foreign]).unwrap();
        assert_eq!(shards[0].generation, Some(Generation(7)));
        let with_crc = |replica: ShardReplica| ShardReplica { crc32c: Some(1), ..replica };
        let shards = groups(&[with_crc(replica("a")), with_crc(changed)]).unwrap();
        assert_eq!((shards[0].generation, shards[0].replicas.len()), (None, 2));
    }

    #[test]
    fn a_shard_needs_a_target() {
        let file = ShardReplica { on: Vec::new(), uuid: None, ..replica("a") };
        assert!(groups(&[file]).unwrap_err().to_string().contains("--target"));
    }
}

//! Which of the files of a folder, or of the namespaces of a subsystem, are shards.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use feedrail_dataset::Name;
use feedrail_dataset::formats::{MdsIndex, MdsShard, ShardBytes};

use super::{ListedShard, ReadPattern, ShardPlace};
use crate::interrupt::Interrupt;

/// What is known of a data set besides its shards.
const NO_SHARDS: [&str; 2] = ["manifest.json", "index.npy"];
const MDS_INDEX: &str = "index.json";

/// A file or a namespace that may be a shard.
pub(super) struct ShardCandidate {
    pub(super) bytes: u64,
    pub(super) place: ShardPlace,
}

/// All of a folder or of a subsystem, by name.
pub(super) type Candidates = BTreeMap<Name, ShardCandidate>;

/// The shards by name; in the order of `index.json` where there is one, as Streaming reads them.
///
/// # Errors
/// `index.json` is not that of MDS, or does not match what is there.
pub(super) fn arrange(
    mut candidates: Candidates,
    interrupt: &Interrupt,
) -> Result<Vec<ListedShard>> {
    let is_index = |name: &Name| name.as_str() == MDS_INDEX;
    if let Some((_, index)) = candidates.iter().find(|(name, _)| is_index(name)) {
        let index = mds_index(&index.place, interrupt)?;
        return index.shards.iter().map(|shard| take_mds(&mut candidates, shard)).collect();
    }
    let names: Vec<Name> = candidates.keys().cloned().collect();
    Ok(names.into_iter().filter_map(|name| take(&mut candidates, name)).collect())
}

/// One shard, with its `.idx` if that is among the candidates.
pub(super) fn take(candidates: &mut Candidates, name: Name) -> Option<ListedShard> {
    let text = name.as_str();
    let is_idx = text.strip_suffix(".idx").is_some_and(|stem| {
        candidates.keys().any(|other| other.as_str().strip_suffix(".bin") == Some(stem))
    });
    if text.starts_with('.') || NO_SHARDS.contains(&text) || is_idx {
        return None;
    }
    let idx = text.strip_suffix(".bin").and_then(|stem| format!("{stem}.idx").parse().ok());
    let idx = idx.and_then(|idx: Name| candidates.get(&idx)).map(|idx| idx.place.clone());
    let ShardCandidate { bytes, place } = candidates.remove(&name)?;
    Some(ListedShard { name, bytes, place, idx })
}

fn mds_index(place: &ShardPlace, interrupt: &Interrupt) -> Result<MdsIndex> {
    let bytes = place.open(ReadPattern::Parts, interrupt)?;
    MdsIndex::parse(ShardBytes::new(0, &*bytes)).context(MDS_INDEX)
}

fn take_mds(candidates: &mut Candidates, shard: &MdsShard) -> Result<ListedShard> {
    let name: Name = shard.basename.parse()?;
    let Some(ShardCandidate { bytes, place }) = candidates.remove(&name) else {
        bail!("{MDS_INDEX} names {name}, which is not there, or twice in it");
    };
    let expected = shard.bytes;
    ensure!(bytes == expected, "{name} has {bytes} bytes, but {MDS_INDEX} says {expected}");
    Ok(ListedShard { name, bytes, place, idx: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(names: &[&str]) -> Candidates {
        let place = |name: &str| ShardPlace::File(name.into());
        let candidate = |name: &&str| {
            let candidate = ShardCandidate { bytes: 1, place: place(name) };
            (name.parse().unwrap(), candidate)
        };
        names.iter().map(candidate).collect()
    }

    #[test]
    fn shards_are_in_order_without_what_describes_them() {
        let interrupt = Interrupt::install().unwrap();
        let names =
            ["b.tar", "a.bin", "a.idx", "lone.idx", "index.npy", "manifest.json", ".hidden"];
        let shards = arrange(candidates(&names), &interrupt).unwrap();
        let found: Vec<_> =
            shards.iter().map(|shard| (shard.name.as_str(), shard.idx.is_some())).collect();
        assert_eq!(found, [("a.bin", true), ("b.tar", false), ("lone.idx", false)]);
    }
}

//! Which of the files of a folder, or of the namespaces of a subsystem, are shards.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use feedrail_dataset::Name;
use feedrail_dataset::formats::{MdsIndex, MdsShard, ShardBytes};

use super::{ListedShard, ReadPattern, ShardLocation};

/// What is known of a data set besides its shards.
const NO_SHARDS: [&str; 3] = ["manifest.json", "index.npy", "keys.npz"];
const MDS_INDEX: &str = "index.json";

/// A file or a namespace that may be a shard.
#[derive(Clone)]
pub(super) struct ShardCandidate {
    pub(super) bytes: u64,
    pub(super) place: ShardLocation,
}

/// All of a folder or of a subsystem, by name.
pub(super) type Candidates = BTreeMap<Name, ShardCandidate>;

/// The shards by name; in the order of `index.json` where there is one, as Streaming reads them.
///
/// # Errors
/// `index.json` is not that of MDS, or does not match what is there.
pub(super) fn arrange(mut candidates: Candidates) -> Result<Vec<ListedShard>> {
    let is_index = |name: &Name| name.as_str() == MDS_INDEX;
    if let Some((_, index)) = candidates.iter().find(|(name, _)| is_index(name)) {
        let index = mds_index(&index.place)?;
        return index.shards.iter().map(|shard| take_mds(&mut candidates, shard)).collect();
    }
    Ok(candidates.keys().filter_map(|name| shard(&candidates, name)).collect())
}

/// A shard with its `.idx`, if that is among the candidates; `None` for what is no shard.
pub(super) fn shard(candidates: &Candidates, name: &Name) -> Option<ListedShard> {
    let text = name.as_str();
    let sibling = |ending: &str, other: &str| {
        let stem = text.strip_suffix(ending)?;
        candidates.get(&format!("{stem}{other}").parse().ok()?)
    };
    let is_idx = sibling(".idx", ".bin").is_some();
    if text.starts_with('.') || NO_SHARDS.contains(&text) || is_idx {
        return None;
    }
    let idx = sibling(".bin", ".idx").map(|idx| idx.place.clone());
    let ShardCandidate { bytes, place } = candidates.get(name)?.clone();
    Some(ListedShard { name: name.clone(), bytes, place, idx })
}

fn mds_index(place: &ShardLocation) -> Result<MdsIndex> {
    let bytes = place.open(ReadPattern::Parts)?;
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
        let place = |name: &str| ShardLocation::File(name.into());
        let candidate = |name: &&str| {
            let candidate = ShardCandidate { bytes: 1, place: place(name) };
            (name.parse().unwrap(), candidate)
        };
        names.iter().map(candidate).collect()
    }

    #[test]
    fn shards_are_in_order_without_what_describes_them() {
        let names = [
            "b.tar",
            "a.bin",
            "a.idx",
            "lone.idx",
            "index.npy",
            "keys.npz",
            "manifest.json",
            ".hidden",
        ];
        let shards = arrange(candidates(&names)).unwrap();
        let found: Vec<_> =
            shards.iter().map(|shard| (shard.name.as_str(), shard.idx.is_some())).collect();
        assert_eq!(found, [("a.bin", true), ("b.tar", false), ("lone.idx", false)]);
    }
}

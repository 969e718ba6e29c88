//! Selects and orders the shards among the files of a folder, or the namespaces of a subsystem.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, bail, ensure};
use feedrail_dataset::Name;
use feedrail_dataset::formats::{MdsIndex, MdsShard, ShardBytes};

use super::{ListedShard, ReadPattern, ShardLocation};

/// Files of a data set that are not shards.
const NO_SHARDS: [&str; 3] = ["manifest.json", "index.npy", "keys.npz"];
const MDS_INDEX: &str = "index.json";

/// File or namespace that may be a shard.
#[derive(Clone)]
pub(super) struct ShardCandidate {
    pub(super) bytes: u64,
    pub(super) place: ShardLocation,
}

/// Files of a folder or namespaces of a subsystem, by name.
pub(super) type Candidates = BTreeMap<Name, ShardCandidate>;

/// Returns the shards, sorted by name. Those in the folder of an `index.json`, and below, have the
/// order that it lists, as in MosaicML Streaming.
///
/// # Errors
/// An `index.json` is not one of MDS, or does not match the files.
pub(super) fn arrange(candidates: &Candidates) -> Result<Vec<ListedShard>> {
    let (mut shards, mut done) = (Vec::new(), BTreeSet::new());
    for name in candidates.keys() {
        match mds_folder(candidates, name) {
            None => shards.extend(shard(candidates, name)),
            Some((folder, index)) if done.insert(folder) => {
                shards.extend(in_mds_order(candidates, folder, &index)?);
            }
            Some(_) => {}
        }
    }
    Ok(shards)
}

/// Returns the outermost folder of a name that contains an `index.json`, with a trailing slash, and
/// the name of that file.
fn mds_folder<'a>(candidates: &Candidates, name: &'a Name) -> Option<(&'a str, Name)> {
    let text = name.as_str();
    let ends = std::iter::once(0).chain(text.match_indices('/').map(|(slash, _)| slash + 1));
    ends.map(|end| &text[..end]).find_map(|folder| {
        let index: Name = format!("{folder}{MDS_INDEX}").parse().ok()?;
        candidates.contains_key(&index).then_some((folder, index))
    })
}

fn in_mds_order(candidates: &Candidates, folder: &str, index: &Name) -> Result<Vec<ListedShard>> {
    let ShardCandidate { place, .. } = candidates.get(index).context("it was just found")?;
    let bytes = place.open(ReadPattern::Parts)?;
    let parsed = MdsIndex::parse(ShardBytes::new(0, &*bytes)).with_context(|| index.to_string())?;
    let mut named = BTreeSet::new();
    let shard = |shard: &MdsShard| {
        let name: Name = format!("{folder}{}", shard.basename).parse()?;
        let found = candidates.get(&name).filter(|_| named.insert(name.clone()));
        let Some(ShardCandidate { bytes, place }) = found.cloned() else {
            bail!("{index} names {name}, which is not there, or twice in it");
        };
        let expected = shard.bytes;
        ensure!(bytes == expected, "{name} has {bytes} bytes, but {index} says {expected}");
        Ok(ListedShard { name, bytes, place, idx: None })
    };
    parsed.shards.iter().map(shard).collect()
}

/// Returns a shard with its `.idx`, if that is among the candidates; `None` for a file that is no
/// shard.
pub(super) fn shard(candidates: &Candidates, name: &Name) -> Option<ListedShard> {
    let text = name.as_str();
    let sibling = |ending: &str, other: &str| {
        let stem = text.strip_suffix(ending)?;
        candidates.get(&format!("{stem}{other}").parse().ok()?)
    };
    let is_idx = sibling(".idx", ".bin").is_some();
    let is_hidden = text.split('/').any(|part| part.starts_with('.'));
    let file = text.rsplit('/').next().unwrap_or(text);
    if is_hidden || NO_SHARDS.contains(&file) || is_idx {
        return None;
    }
    let idx = sibling(".bin", ".idx").map(|idx| idx.place.clone());
    let ShardCandidate { bytes, place } = candidates.get(name)?.clone();
    Some(ListedShard { name: name.clone(), bytes, place, idx })
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
            "x/.hidden/a.tar",
            "x/index.npy",
            "x/c.tar",
        ];
        let shards = arrange(&candidates(&names)).unwrap();
        let found: Vec<_> =
            shards.iter().map(|shard| (shard.name.as_str(), shard.idx.is_some())).collect();
        assert_eq!(
            found,
            [("a.bin", true), ("b.tar", false), ("lone.idx", false), ("x/c.tar", false)]
        );
    }
}

//! Shards in files and folders.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use feedrail_dataset::Name;

use super::arrange::{Candidates, ShardCandidate, arrange, shard};
use super::{ListedShard, ShardLocation};

/// A file, or the regular files of a folder.
pub(super) fn shards(path: &Path) -> Result<Vec<ListedShard>> {
    if fs::metadata(path)?.is_dir() {
        return arrange(folder(path)?);
    }
    let (name, file) = candidate(path)?;
    // A file that is named is a shard whatever its name is.
    let (bytes, place) = (file.bytes, file.place.clone());
    let mut candidates: Candidates = [(name.clone(), file)].into();
    let idx = path.with_extension("idx");
    if path.extension().is_some_and(|extension| extension == "bin") && idx.is_file() {
        candidates.extend([candidate(&idx)?]);
    }
    let named = ListedShard { name, bytes, place, idx: None };
    Ok(vec![shard(&candidates, &named.name).unwrap_or(named)])
}

fn folder(path: &Path) -> Result<Candidates> {
    let paths: Vec<PathBuf> =
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let files = paths.iter().filter(|path| path.is_file());
    files.map(|path| candidate(path)).collect()
}

fn candidate(path: &Path) -> Result<(Name, ShardCandidate)> {
    let about = || path.display().to_string();
    let metadata = fs::metadata(path).with_context(about)?;
    ensure!(metadata.is_file(), "{} is neither a regular file nor a folder", path.display());
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.context("a shard needs a file name in UTF-8").with_context(about)?;
    let name = name.parse().with_context(about)?;
    Ok((
        name,
        ShardCandidate { bytes: metadata.len(), place: ShardLocation::File(path.to_owned()) },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_named_is_a_shard_and_its_idx_is_found() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.bin", "a.idx", "index.npy"] {
            fs::write(folder.path().join(name), name).unwrap();
        }
        let named = |name: &str| shards(&folder.path().join(name)).unwrap();
        let found = named("a.bin");
        assert_eq!((found.len(), found[0].bytes, found[0].idx.is_some()), (1, 5, true));
        assert_eq!(named("a.idx")[0].name.as_str(), "a.idx");
        assert_eq!(named("index.npy")[0].bytes, 9);
        assert_eq!(named("").len(), 1);
        assert!(shards(&folder.path().join("missing")).is_err());
    }
}

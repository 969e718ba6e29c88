//! Shards in local files and folders.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use feedrail_dataset::Name;

use super::arrange::{Candidates, ShardCandidate, arrange, shard};
use super::{ListedShard, ShardLocation};

/// Returns a file, or the regular files of a folder, as shards.
pub(super) fn shards(path: &Path) -> Result<Vec<ListedShard>> {
    if fs::metadata(path)?.is_dir() {
        return arrange(&folder(path)?);
    }
    let (name, file) = candidate(path, file_name(path)?)?;
    // A file that is named explicitly is a shard, whatever its name is.
    let (bytes, place) = (file.bytes, file.place.clone());
    let mut candidates: Candidates = [(name.clone(), file)].into();
    let idx = path.with_extension("idx");
    if path.extension().is_some_and(|extension| extension == "bin") && idx.is_file() {
        candidates.extend([candidate(&idx, file_name(&idx)?)?]);
    }
    let named = ListedShard { name, bytes, place, idx: None };
    Ok(vec![shard(&candidates, &named.name).unwrap_or(named)])
}

/// Lists the files that a target would export of a folder: regular files in it and in its
/// sub-folders that are neither hidden nor empty. Links to folders are not followed.
fn folder(root: &Path) -> Result<Candidates> {
    let mut candidates = Candidates::new();
    let mut folders = vec![(root.to_owned(), String::new())];
    while let Some((folder, prefix)) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = file_name(&path)?;
            if name.starts_with('.') {
                continue;
            }
            let name = format!("{prefix}{name}");
            if path.symlink_metadata()?.is_dir() {
                folders.push((path, format!("{name}/")));
            } else if path.is_file() {
                let (name, file) = candidate(&path, &name)?;
                match file.bytes {
                    0 => eprintln!("warning: {} is empty, and no shard", path.display()),
                    _ => drop(candidates.insert(name, file)),
                }
            }
        }
    }
    Ok(candidates)
}

fn file_name(path: &Path) -> Result<&str> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.with_context(|| format!("{}: a shard needs a file name in UTF-8", path.display()))
}

fn candidate(path: &Path, name: &str) -> Result<(Name, ShardCandidate)> {
    let about = || path.display().to_string();
    let metadata = fs::metadata(path).with_context(about)?;
    ensure!(metadata.is_file(), "{} is neither a regular file nor a folder", path.display());
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

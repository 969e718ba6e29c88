//! Files that become the entries of a checkpoint.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::entry_paths;

/// A file to be saved, and its length when it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SourceFile {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Returns files by the names of their entries: of a file its name, of a folder the paths of all
/// files in it, relative to the folder.
///
/// # Errors
/// Nothing is there, two files have one name, a file has the name of a folder of others, or
/// something is neither file nor folder.
pub(super) fn find(paths: &[PathBuf]) -> Result<BTreeMap<String, SourceFile>> {
    let mut files = BTreeMap::new();
    for path in paths {
        let about = || format!("cannot read {}", path.display());
        if fs::metadata(path).with_context(about)?.is_dir() {
            walk(path, "", &mut files)?;
        } else {
            let name = path.file_name().with_context(about)?;
            add(path, text(name.as_ref())?, &mut files)?;
        }
    }
    ensure!(!files.is_empty(), "there are no files to save");
    entry_paths::check(files.keys().map(String::as_str))?;
    Ok(files)
}

fn walk(folder: &Path, prefix: &str, files: &mut BTreeMap<String, SourceFile>) -> Result<()> {
    let about = || format!("cannot read {}", folder.display());
    for found in fs::read_dir(folder).with_context(about)? {
        let found = found.with_context(about)?;
        let path = found.path();
        let name = format!("{prefix}{}", text(found.file_name().as_ref())?);
        if found.file_type().with_context(about)?.is_dir() {
            walk(&path, &format!("{name}/"), files)?;
        } else {
            add(&path, name, files)?;
        }
    }
    Ok(())
}

fn add(path: &Path, name: String, files: &mut BTreeMap<String, SourceFile>) -> Result<()> {
    let about = || format!("cannot read {}", path.display());
    // Of a symbolic link, that of the file that it points to.
    let metadata = fs::metadata(path).with_context(about)?;
    ensure!(metadata.is_file(), "{} is not a regular file", path.display());
    let file = SourceFile { path: path.to_owned(), bytes: metadata.len() };
    if let Some(other) = files.insert(name.clone(), file) {
        bail!("{} and {} would both be the entry {name:?}", other.path.display(), path.display());
    }
    Ok(())
}

fn text(name: &Path) -> Result<String> {
    let name =
        name.to_str().with_context(|| format!("the name {} is not UTF-8", name.display()))?;
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_walked_and_duplicates_refused() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("rank0/deep");
        fs::create_dir_all(&inner).unwrap();
        fs::write(inner.join("a"), "12").unwrap();
        fs::write(folder.path().join("a"), "").unwrap();
        let found = find(&[folder.path().to_owned()]).unwrap();
        let names: Vec<_> = found.iter().map(|(name, file)| (name.as_str(), file.bytes)).collect();
        assert_eq!(names, [("a", 0), ("rank0/deep/a", 2)]);

        find(&[folder.path().join("a"), inner.join("a")]).unwrap_err();
        let error = find(&[folder.path().join("none")]).unwrap_err();
        assert!(format!("{error:#}").contains("none"), "{error:#}");
        std::os::unix::fs::symlink(folder.path(), inner.join("up")).unwrap();
        let error = find(&[folder.path().to_owned()]).unwrap_err();
        assert!(format!("{error:#}").contains("up is not a regular file"), "{error:#}");
    }

    #[test]
    fn an_empty_folder_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        find(&[folder.path().to_owned()]).unwrap_err();
    }
}

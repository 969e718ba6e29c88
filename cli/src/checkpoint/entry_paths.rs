//! Names of entries as paths of files in a folder.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

/// Fails if the name of an entry is a folder in the name of a second entry: both cannot be files.
pub(super) fn check<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<()> {
    let names: BTreeSet<&str> = names.into_iter().collect();
    for name in &names {
        for (end, _) in name.match_indices('/') {
            let folder = &name[..end];
            ensure!(
                !names.contains(folder),
                "the entries {folder:?} and {name:?} cannot both be files of one folder"
            );
        }
    }
    Ok(())
}

/// Returns the path of an entry in a folder. Names of entries have no parts such as `..`.
///
/// # Errors
/// A part of it below the folder is a symbolic link, which may lead elsewhere.
pub(super) fn below(folder: &Path, entry: &str) -> Result<PathBuf> {
    let mut path = folder.to_owned();
    for part in entry.split('/') {
        path.push(part);
        let is_link = fs::symlink_metadata(&path).is_ok_and(|found| found.is_symlink());
        ensure!(!is_link, "{} is a symbolic link, which is not followed", path.display());
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_no_folder() {
        check(["a", "ab", "b/a", "b/c/d", "c/d"]).unwrap();
        let error = check(["a-b", "a/b/c", "a"]).unwrap_err();
        assert!(error.to_string().contains("\"a\" and \"a/b/c\""), "{error}");
        check(["a/b/c", "a/b"]).unwrap_err();
    }

    #[test]
    fn symbolic_links_below_the_folder_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        symlink(outside.path(), folder.path().join("link")).unwrap();
        fs::create_dir(folder.path().join("rank0")).unwrap();
        symlink("nowhere", folder.path().join("rank0/model")).unwrap();
        for entry in ["link", "link/model", "rank0/model"] {
            let error = below(folder.path(), entry).unwrap_err();
            assert!(error.to_string().contains("is a symbolic link"), "{error}");
        }
        // The folder itself may be one.
        let link = outside.path().join("folder");
        symlink(folder.path(), &link).unwrap();
        assert_eq!(below(&link, "rank0/other").unwrap(), link.join("rank0/other"));
    }
}

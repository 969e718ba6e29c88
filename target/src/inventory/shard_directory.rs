//! Selects the files of an exported directory that become namespaces (shards).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FileType;

use crate::backend::{FolderEntry, ServedRoot};
use crate::config::{DirectoryConfig, NamespaceName};
use crate::inventory::left_out::{LeftOutFiles, LeftOutSummary};
use crate::limits::{DIRECTORY_DEPTH, MAX_NAMESPACES};

/// File of a directory that becomes a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shard {
    /// Path relative to the exported directory.
    pub relative: NamespaceName,
    /// Real path of the file, with symlinks resolved.
    pub path: PathBuf,
    /// Real path of the exported directory.
    pub root: Arc<Path>,
}

#[derive(Debug)]
pub(crate) struct ShardFiles {
    /// Files to export, sorted by relative path.
    pub shards: Vec<Shard>,
    /// Files and folders that are left out.
    pub left_out: LeftOutSummary,
}

/// Reason that a directory cannot be exported.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct DirectoryError {
    path: PathBuf,
    reason: String,
}

/// Returns the regular files of a directory and its subfolders, sorted by relative path.
///
/// It leaves out, with a line in the log: names that start with a dot, empty files, files that are
/// not regular, and (with a warning) symlinks that are dangling or lead outside the directory,
/// names that are not UTF-8, unreadable folders, and folders nested too deep. Symlinks to folders
/// are not followed. Files without the configured suffix are skipped.
///
/// # Errors
/// The directory cannot be read, is no directory, or has no file to export or too many.
pub(crate) fn scan(
    config: &DirectoryConfig,
    left_out: &mut LeftOutFiles,
) -> Result<ShardFiles, DirectoryError> {
    let failed = |path: &Path, error: io::Error| DirectoryError {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let root = ServedRoot::open(&config.path).map_err(|error| failed(&config.path, error))?;
    let (mut shards, mut summary) = (Vec::new(), LeftOutSummary::default());
    let mut folders = vec![(PathBuf::new(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let path = root.path().join(&folder);
        let entries = match root.folder(&folder).and_then(|folder| folder.entries()) {
            Ok(entries) => entries,
            Err(error) if depth > 0 => {
                let reason = format!("with all that is in it: {error}");
                summary.add(&path, &reason);
                left_out.note(&path, reason);
                continue;
            }
            Err(error) => return Err(failed(&path, error)),
        };
        for entry in entries {
            let path = root.path().join(&entry.relative);
            match classify(&root, &entry, &config.suffix) {
                DirectoryEntry::Shard(shard) => shards.push(shard),
                DirectoryEntry::Folder if depth < DIRECTORY_DEPTH => {
                    folders.push((entry.relative, depth + 1))
                }
                DirectoryEntry::Folder => {
                    let reason = format!("folders nest more than {DIRECTORY_DEPTH} deep");
                    summary.add(&path, &reason);
                    left_out.note(&path, reason);
                }
                DirectoryEntry::OtherSuffix => {}
                DirectoryEntry::ExcludedByRule(rule) => {
                    summary.add(&path, rule);
                    left_out.skip(&path, rule);
                }
                DirectoryEntry::Unusable(reason) => {
                    summary.add(&path, reason);
                    left_out.note(&path, reason);
                }
            }
            if shards.len() > MAX_NAMESPACES {
                let reason = format!("holds more than {MAX_NAMESPACES} files; split the directory");
                return Err(DirectoryError { path: root.path().to_owned(), reason });
            }
        }
    }
    if shards.is_empty() {
        let reason = match config.suffix.as_str() {
            "" => "holds no file to export".to_owned(),
            suffix => format!("holds no file to export whose name ends in \"{suffix}\""),
        };
        return Err(DirectoryError { path: root.path().to_owned(), reason });
    }
    shards.sort();
    Ok(ShardFiles { shards, left_out: summary })
}

/// Reason for leaving out empty files: their NSZE would be 0, like that of an inactive namespace.
const EMPTY: &str = "it is empty";
const NOT_REGULAR: &str = "it is no regular file";

enum DirectoryEntry {
    Shard(Shard),
    Folder,
    OtherSuffix,
    /// Left out by a documented rule; logged at level info.
    ExcludedByRule(&'static str),
    /// Left out because of a problem; logged as a warning.
    Unusable(&'static str),
}

fn classify(root: &ServedRoot, entry: &FolderEntry, suffix: &str) -> DirectoryEntry {
    let Some(name) = entry.relative.file_name().and_then(|name| name.to_str()) else {
        return DirectoryEntry::Unusable("its name is not UTF-8");
    };
    if name.starts_with('.') {
        return DirectoryEntry::ExcludedByRule("its name begins with a dot");
    }
    match entry.kind {
        None => DirectoryEntry::Unusable("it cannot be examined"),
        Some((FileType::Directory, _)) => DirectoryEntry::Folder,
        Some(_) if !name.ends_with(suffix) => DirectoryEntry::OtherSuffix,
        Some((FileType::Symlink, _)) => classify_symlink(root, &entry.relative),
        Some((FileType::RegularFile, 1..)) => shard(root, &entry.relative, &entry.relative),
        Some((FileType::RegularFile, 0)) => DirectoryEntry::ExcludedByRule(EMPTY),
        Some(_) => DirectoryEntry::ExcludedByRule(NOT_REGULAR),
    }
}

/// Resolves a symlink once: the namespace has the real path of the file, and later changes of the
/// link have no effect.
fn classify_symlink(root: &ServedRoot, relative: &Path) -> DirectoryEntry {
    let Ok(real) = root.path().join(relative).canonicalize() else {
        return DirectoryEntry::Unusable("the symlink leads nowhere");
    };
    let Ok(real) = real.strip_prefix(root.path()) else {
        return DirectoryEntry::Unusable("the symlink leads outside the directory");
    };
    match root.find(real).and_then(|found| found.metadata()) {
        Ok(meta) if meta.is_file() && meta.len() > 0 => shard(root, relative, real),
        Ok(meta) if meta.is_file() => DirectoryEntry::ExcludedByRule(EMPTY),
        Ok(_) => DirectoryEntry::ExcludedByRule(NOT_REGULAR),
        Err(_) => DirectoryEntry::Unusable("it cannot be examined"),
    }
}

fn shard(root: &ServedRoot, relative: &Path, real: &Path) -> DirectoryEntry {
    match relative.to_str() {
        Some(relative) => match NamespaceName::try_from(relative.to_owned()) {
            Ok(relative) => {
                let (path, root) = (root.path().join(real), Arc::from(root.path()));
                DirectoryEntry::Shard(Shard { relative, path, root })
            }
            Err(_) => DirectoryEntry::Unusable("its relative path is too long"),
        },
        None => DirectoryEntry::Unusable("its path is not UTF-8"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::config::Origin;

    fn config(path: &Path, suffix: &str) -> DirectoryConfig {
        DirectoryConfig {
            path: path.to_owned(),
            suffix: suffix.into(),
            writable: false,
            content_id: None,
            block_shift: None,
            direct_io: crate::config::DirectIo::default(),
            watch: false,
            origin: Origin("test".into()),
        }
    }

    #[test]
    fn finds_shards_and_lets_no_symlink_out() {
        let outside = tempfile::tempdir().expect("a folder");
        std::fs::write(outside.path().join("secret.tar"), "secret").expect("written");
        let dir = tempfile::tempdir().expect("a folder");
        let root = dir.path();
        std::fs::create_dir(root.join("sub")).expect("made");
        for (name, content) in
            [("b.tar", "b"), ("sub/a.tar", "a"), (".hidden.tar", "h"), ("empty.tar", "")]
        {
            std::fs::write(root.join(name), content).expect("written");
        }
        std::fs::write(root.join("notes.txt"), "n").expect("written");
        symlink(outside.path().join("secret.tar"), root.join("out.tar")).expect("linked");
        symlink(outside.path(), root.join("away")).expect("linked");
        symlink(root.join("gone"), root.join("dangling.tar")).expect("linked");
        symlink(root.join("b.tar"), root.join("inside.tar")).expect("linked");
        symlink(root, root.join("loop")).expect("linked");

        let found = scan(&config(root, ".tar"), &mut LeftOutFiles::default()).expect("shards");
        // .hidden.tar, empty.tar, out.tar and dangling.tar: the links to folders have no suffix.
        assert_eq!((found.left_out.count, found.left_out.examples.len()), (4, 4));
        let names: Vec<_> = found.shards.iter().map(|shard| &*shard.relative).collect();
        assert_eq!(names, ["b.tar", "inside.tar", "sub/a.tar"]);
    }

    #[test]
    fn an_empty_directory_is_reported() {
        let dir = tempfile::tempdir().expect("a folder");
        let left_out = &mut LeftOutFiles::default();
        let error = scan(&config(dir.path(), ".tar"), left_out).expect_err("empty").to_string();
        assert!(error.contains("ends in \".tar\""), "{error}");
        let error =
            scan(&config(&dir.path().join("none"), ""), left_out).expect_err("missing").to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}

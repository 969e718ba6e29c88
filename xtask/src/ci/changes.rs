//! Files that have changed since a commit.

use std::collections::BTreeSet;

/// Files that differ between a commit and the working tree.
pub(crate) enum Changes {
    Files(BTreeSet<String>),
    /// The commit is not in this clone, so any file may have changed.
    Unknown,
}

impl Changes {
    pub(crate) fn since(commit: &str) -> Self {
        let git = |arguments: &[&str]| crate::output("git", arguments).ok();
        let changed = git(&["diff", "--name-only", "--no-renames", commit.trim()]);
        let untracked = git(&["ls-files", "--others", "--exclude-standard"]);
        let (Some(changed), Some(untracked)) = (changed, untracked) else { return Self::Unknown };
        Self::Files(changed.lines().chain(untracked.lines()).map(str::to_owned).collect())
    }

    /// Whether a changed file is one of `paths`, or below one of them.
    pub(crate) fn touch(&self, paths: &[&str]) -> bool {
        let Self::Files(files) = self else { return true };
        let is_in = |file: &str, path: &str| {
            file.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        files.iter().any(|file| paths.iter().any(|path| is_in(file, path)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_file_or_a_folder() {
        let files = ["rdma/src/shm/ring.rs", "Cargo.lock"].map(str::to_owned);
        let changes = Changes::Files(files.into());
        assert!(changes.touch(&["rdma/src/shm"]));
        assert!(changes.touch(&["target", "Cargo.lock"]));
        assert!(!changes.touch(&["rdma/src/sh", "rdma/src/shm/ring", "Cargo"]));
        assert!(Changes::Unknown.touch(&["anything"]));
    }
}

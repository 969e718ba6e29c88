//! Files of exported directories that do not become namespaces. Each is logged once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Most files that are remembered from one scan to the next; others are logged at each scan.
const MOST: usize = 4096;

/// Most files of a subsystem that the status page names with the reason.
const EXAMPLES: usize = 100;

/// Files left out in the last two scans of some directories, with the reason for each.
#[derive(Debug, Default)]
pub(crate) struct LeftOutFiles {
    /// Whether the files were logged by a scan that left no record, so that this one is silent.
    all_logged: bool,
    before: BTreeSet<(PathBuf, String)>,
    now: BTreeSet<(PathBuf, String)>,
}

impl LeftOutFiles {
    /// Creates the record after a scan that has logged all files.
    pub(super) fn logged() -> Self {
        Self { all_logged: true, ..Self::default() }
    }

    /// Ends a scan. The next scan does not log files with the same reasons again.
    pub(super) fn end_look(&mut self) {
        self.all_logged = false;
        self.before = std::mem::take(&mut self.now);
    }

    /// Records a file that is left out, with a warning if it is new. Returns whether it was logged.
    pub(super) fn note(&mut self, path: &Path, reason: impl Into<String>) -> bool {
        let entry = (path.to_owned(), reason.into());
        let is_new = self.is_new(&entry);
        if is_new {
            tracing::warn!(path = %path.display(), "left out: {}", entry.1);
        }
        self.remember(entry);
        is_new
    }

    /// Records a file that a documented rule leaves out, as [`LeftOutFiles::note`] does at level
    /// info, except that files beyond the first [`MOST`] are not logged.
    pub(super) fn skip(&mut self, path: &Path, rule: &str) -> bool {
        let entry = (path.to_owned(), rule.to_owned());
        let is_new = self.is_new(&entry) && self.now.len() < MOST;
        if is_new {
            tracing::info!(path = %path.display(), "left out: {rule}");
        }
        self.remember(entry);
        is_new
    }

    fn is_new(&self, entry: &(PathBuf, String)) -> bool {
        !self.all_logged && !self.before.contains(entry)
    }

    fn remember(&mut self, entry: (PathBuf, String)) {
        if self.now.len() < MOST {
            self.now.insert(entry);
        }
    }
}

/// Number of files that a subsystem's directories left out in the last scan, with examples.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOutSummary {
    pub(crate) count: usize,
    /// Paths and reasons of the first 100 of them.
    pub(crate) examples: Vec<(PathBuf, String)>,
}

impl LeftOutSummary {
    pub(super) fn add(&mut self, path: &Path, reason: &str) {
        self.count += 1;
        if self.examples.len() < EXAMPLES {
            self.examples.push((path.to_owned(), reason.to_owned()));
        }
    }

    pub(super) fn add_all(&mut self, other: Self) {
        self.count += other.count;
        self.examples.extend(other.examples);
        self.examples.truncate(EXAMPLES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_logged_until_it_is_over() {
        let mut files = LeftOutFiles::default();
        let [a, b] = ["a", "b"].map(Path::new);
        assert!(files.note(a, "empty") && files.note(b, "empty"));
        files.end_look();
        assert!(!files.note(a, "empty"));
        files.end_look();
        assert!(!files.note(a, "empty") && files.note(a, "gone") && files.note(b, "empty"));
        let mut files = LeftOutFiles::logged();
        assert!(!files.note(a, "empty"));
        files.end_look();
        assert!(!files.note(a, "empty") && files.note(b, "empty"));
    }

    #[test]
    fn a_rule_is_logged_once_and_not_without_end() {
        let mut files = LeftOutFiles::default();
        assert!(files.skip(Path::new("a"), "it is empty"));
        files.end_look();
        assert!(!files.skip(Path::new("a"), "it is empty"));
        let logged = (0..2 * MOST).filter(|n| files.skip(&PathBuf::from(n.to_string()), "rule"));
        assert_eq!(logged.count(), MOST - 1);
    }
}

//! Commits at which conditional steps last passed, recorded in `xtask/last-passed`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

/// Path of the record from the root: each line has the name of a step and a commit.
const RECORD: &str = "xtask/last-passed";

/// Commit at which each conditional step last passed, by the name of the step.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LastPassed(BTreeMap<String, String>);

impl LastPassed {
    pub(crate) fn read() -> Result<Self> {
        let path = path();
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let (step, commit) = line.split_once(' ')?;
            Some((step.to_owned(), commit.trim().to_owned()))
        };
        Self(text.lines().filter_map(line).collect())
    }

    /// Commit at which a step last passed; `None` if it never passed.
    pub(crate) fn commit(&self, step: &str) -> Option<&str> {
        self.0.get(step).map(String::as_str)
    }

    /// Records that steps have passed at the commit that is checked out, unless files other than
    /// the record have changed.
    pub(crate) fn record(mut self, steps: &[&str]) -> Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let changed = crate::output("git", &["status", "--porcelain"])?;
        if changed.lines().any(|line| !line.ends_with(RECORD)) {
            println!("{RECORD} stays: there are uncommitted changes");
            return Ok(());
        }
        let commit = crate::output("git", &["rev-parse", "HEAD"])?;
        let passed = steps.iter().map(|step| ((*step).to_owned(), commit.trim().to_owned()));
        self.0.extend(passed);
        fs::write(path(), self.to_text())?;
        println!("{RECORD} now has {} for {}: commit it", commit.trim(), steps.join(", "));
        Ok(())
    }

    fn to_text(&self) -> String {
        self.0.iter().map(|(step, commit)| format!("{step} {commit}\n")).collect()
    }
}

fn path() -> PathBuf {
    crate::root().join(RECORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_has_a_commit_of_its_own() {
        let text = "linked 0a1b\nloom c42b\n";
        let passed = LastPassed::parse(text);
        assert_eq!((passed.commit("loom"), passed.commit("torch")), (Some("c42b"), None));
        assert_eq!(passed.to_text(), text);
    }
}

//! The files of a release, as they are told of.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// A file of a release, and what it took to make it.
pub(crate) struct Artefact {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// None of files that came with another.
    pub(crate) seconds: Option<u64>,
}

impl Artefact {
    pub(crate) fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({"artefact": self.name(), "bytes": self.bytes, "seconds": self.seconds})
    }
}

/// Does a piece of work; the files that are new or other in a folder after it.
#[expect(clippy::disallowed_methods, reason = "the table shows what took the time")]
pub(crate) fn made_by(folder: &Path, work: impl FnOnce() -> Result<()>) -> Result<Vec<Artefact>> {
    let before = listing(folder)?;
    let begin = Instant::now();
    work()?;
    let mut seconds = Some(begin.elapsed().as_secs());
    let made = listing(folder)?.into_iter().filter(|file| !before.contains(file));
    Ok(made.map(|(path, bytes, _)| Artefact { path, bytes, seconds: seconds.take() }).collect())
}

/// A file with its size and the time of its last change.
type Listed = (PathBuf, u64, SystemTime);

fn listing(folder: &Path) -> Result<Vec<Listed>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_file() {
            files.push((entry.path(), metadata.len(), metadata.modified()?));
        }
    }
    files.sort();
    Ok(files)
}

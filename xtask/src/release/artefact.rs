//! Files of a release, as the report lists them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// File of a release, and the time in seconds that it took to build.
pub(crate) struct Artefact {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    /// `None` for a file that was built together with another.
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

/// Calls `work`, and returns the files in `folder` that are new or have changed since.
#[expect(clippy::disallowed_methods, reason = "the table shows what took the time")]
pub(crate) fn made_by(folder: &Path, work: impl FnOnce() -> Result<()>) -> Result<Vec<Artefact>> {
    let before = listing(folder)?;
    let begin = Instant::now();
    work()?;
    let mut seconds = Some(begin.elapsed().as_secs());
    let made = listing(folder)?.into_iter().filter(|file| !before.contains(file));
    Ok(made.map(|(path, bytes, _)| Artefact { path, bytes, seconds: seconds.take() }).collect())
}

/// Path, size in bytes and modification time of a file.
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

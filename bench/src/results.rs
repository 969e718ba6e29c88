//! Results of the bench: figures, machine, and verdict.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::figures::Figures;
use crate::machine::MachineInfo;
use crate::verdict;

/// Contents of a results file.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: MachineInfo,
    /// Duration of each load in seconds.
    pub(crate) seconds: u32,
    pub(crate) figures: Figures,
}

impl Results {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("{}: run `cargo xtask bench` first", path.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("{}: not results of this bench", path.display()))
    }

    /// Writes the results as JSON, with the verdict on each requirement.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let mut json = json!(self);
        json["verdict"] = json!(verdict::lines(&self.figures));
        let text = format!("{}\n", serde_json::to_string_pretty(&json)?);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(path, text).with_context(|| path.display().to_string())
    }
}

/// Results of this machine, and those of other machines in the same folder.
pub(crate) struct KeptResults {
    pub(crate) latest: Results,
    /// Results of other machines, in the order of their file names.
    pub(crate) others: Vec<Results>,
}

impl KeptResults {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let latest = Results::read(path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut others = files(folder.unwrap_or(Path::new(".")))?;
        others.retain(|other| {
            other.file_name() != path.file_name() && other.extension() == Some("json".as_ref())
        });
        others.sort();
        let others = others.iter().map(|other| Results::read(other)).collect::<Result<_>>()?;
        Ok(Self { latest, others })
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?)
}

//! What a bench leaves: figures, the machine, and what they come to.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::figures::Figures;
use crate::machine::Machine;
use crate::verdict;

/// The file of results.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Results {
    pub(crate) machine: Machine,
    /// How long each load ran, in seconds.
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

    /// Writes them, with the verdict for those who read no Rust.
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

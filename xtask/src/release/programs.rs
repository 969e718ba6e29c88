//! Builds `feedrail` and `feedrail-target` for an architecture, and generates their documentation.
//!
//! zig links them with an old version of glibc. A static program could not load rdma-core, which
//! the provider `verbs` does on first use.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::architecture::{Architecture, GLIBC};
use super::tools::Tools;
use crate::root;

/// Names of the released programs.
pub(crate) const NAMES: [&str; 2] = ["feedrail", "feedrail-target"];
/// Shells with completions, with prefix and suffix of the names of their completion files.
const SHELLS: [(&str, &str, &str); 3] = [("bash", "", ""), ("zsh", "_", ""), ("fish", "", ".fish")];

/// Builds the programs, and returns their folder.
pub(crate) fn build(tools: &Tools, architecture: Architecture) -> Result<PathBuf> {
    let triple = architecture.triple();
    let target = format!("{triple}.{GLIBC}");
    let packages = ["--package", "feedrail-cli", "--package", "feedrail-target"];
    let profile = ["zigbuild", "--profile", "dist", "--locked", "--target", &target];
    let zigbuild = tools.program("cargo-zigbuild");
    let environment = tools.environment(architecture, &architecture.programs_dir())?;
    environment.run(&zigbuild, &[&profile[..], &packages].concat())?;
    Ok(root().join(architecture.programs_dir()).join(triple).join("dist"))
}

/// Writes the completions of both programs, in a folder for each shell.
pub(crate) fn write_completions(feedrail: &Path, folder: &Path) -> Result<()> {
    for (shell, prefix, suffix) in SHELLS {
        let folder = folder.join(shell);
        fs::create_dir_all(&folder)?;
        for program in NAMES {
            let mut command = Command::new(feedrail);
            let output = command.args(["completions", shell, program]).output()?;
            ensure!(output.status.success(), "no completions of {program} for {shell}");
            fs::write(folder.join(format!("{prefix}{program}{suffix}")), output.stdout)?;
        }
    }
    Ok(())
}

/// Writes the manual pages of all programs, in a folder for each section.
pub(crate) fn write_manual(feedrail: &Path, folder: &Path) -> Result<()> {
    crate::run(&feedrail.display().to_string(), &["man", &folder.display().to_string()], &[])
}

/// Reads all files below a folder, by their path relative to it.
pub(crate) fn files(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).with_context(|| next.display().to_string())? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder)?.to_string_lossy().into_owned();
            found.insert(name, fs::read(&path).with_context(|| path.display().to_string())?);
        }
    }
    Ok(found)
}

//! Inputs that are kept: `corpus/TARGET/` in this package.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::FuzzTarget;

/// Where the inputs of a target are.
pub fn folder(target: &FuzzTarget) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name)
}

/// The inputs of a target, ordered by the names of their files.
///
/// # Errors
/// The corpus is missing, or it cannot be read.
pub fn load(target: &FuzzTarget) -> Result<Vec<Vec<u8>>> {
    let folder = folder(target);
    let read = || format!("reading {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(&folder).with_context(read)? {
        paths.push(entry.with_context(read)?.path());
    }
    paths.sort();
    ensure!(!paths.is_empty(), "{} is empty: `cargo run -p feedrail-fuzz seeds`", folder.display());
    paths.iter().map(|path| fs::read(path).with_context(|| path.display().to_string())).collect()
}

//! Wheels of the Python package for manylinux_2_28, and its source distribution.
//!
//! One wheel of an architecture supports Python 3.11 and later. Python 3.10 has a wheel of its own,
//! since its stable ABI lacks the buffer protocol.

use std::path::Path;

use anyhow::Result;

use super::architecture::Architecture;
use super::tools::Tools;
use crate::root;

/// Interpreter for maturin, and features of the crate, of each wheel.
const PYTHONS: [(&str, &[&str]); 2] =
    [("python3.11", &[]), ("python3.10", &["--no-default-features"])];

/// Builds the wheels of an architecture into a folder.
pub(crate) fn build(tools: &Tools, architecture: Architecture, folder: &Path) -> Result<()> {
    let (triple, folder) = (architecture.triple(), folder.display().to_string());
    let environment = tools.environment(architecture, &architecture.wheels_dir())?;
    // By default zig would link an unwinder of its own.
    let environment = environment
        .with("CARGO_ZIGBUILD_PYTHON_PATH", &root().join("xtask/release/python-for-zig.sh"))
        .with("FEEDRAIL_LIBGCC", &tools.unwinder(architecture)?);
    for (python, features) in PYTHONS {
        let manifest = ["build", "--manifest-path", "python/Cargo.toml", "--locked", "--zig"];
        let wanted = ["--profile", "dist", "--compatibility", "manylinux_2_28"];
        let target = ["--target", &triple, "--interpreter", python, "--out", &folder];
        let arguments = [&manifest[..], &wanted, &target, features].concat();
        environment.run(&tools.program("maturin"), &arguments)?;
    }
    Ok(())
}

/// Writes the source distribution into a folder.
pub(crate) fn write_sources(tools: &Tools, folder: &Path) -> Result<()> {
    let folder = folder.display().to_string();
    let arguments = ["sdist", "--manifest-path", "python/Cargo.toml", "--out", &folder];
    crate::run(&tools.program("maturin"), &arguments, &[])
}

//! `cargo xtask bench`: builds the measured programs as they are shipped, and runs the bench.

use anyhow::Result;

use crate::{root, run};

/// Measures; the options are those of the `feedrail-bench` program.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// `--quick`, `--verdict`, `--runs N`, `--output PATH`, sections; see `cargo xtask bench
    /// --help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Packages with the programs that the bench runs.
const PACKAGES: [&str; 3] = ["feedrail-bench", "feedrail-cli", "feedrail-target"];

/// Builds and runs the bench.
pub(crate) fn main(options: &Options) -> Result<()> {
    let packages = PACKAGES.iter().flat_map(|package| ["--package", package]);
    let build = ["build", "--profile", "dist"];
    run("cargo", &build.into_iter().chain(packages).collect::<Vec<_>>(), &[])?;
    let folder = root().join("out/dist");
    let program = folder.join("feedrail-bench");
    let arguments: Vec<&str> = options.arguments.iter().map(String::as_str).collect();
    let folder = folder.to_string_lossy();
    run(&program.to_string_lossy(), &arguments, &[("FEEDRAIL_BIN_DIR", &folder)])
}

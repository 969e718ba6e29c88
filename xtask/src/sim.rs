//! The simulated worlds of `tests/`, by hand and in any number.

use anyhow::Result;

/// Runs worlds; the options are those of the `sim` program.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// `--seeds N`, `--first SEED`, `--seed SEED`, `--trace`, `--jobs N`; see `cargo xtask sim --help`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs the `sim` program.
pub(crate) fn main(options: &Options) -> Result<()> {
    let mut arguments = vec!["run", "--quiet", "--package", "feedrail-tests", "--bin", "sim", "--"];
    arguments.extend(options.arguments.iter().map(String::as_str));
    crate::run("cargo", &arguments, &[])
}

//! `cargo xtask sim`: runs the simulated worlds of `tests/`.

use anyhow::Result;

/// Runs worlds; the options are those of the `sim` program.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// `--seeds N`, `--first SEED`, `--seed SEED`, `--trace`, `--jobs N`: see `cargo xtask sim
    /// --help`. `--bugs` or `--bug NAME`: whether worlds find bugs that are put in on purpose.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Builds and runs the program `sim`, or with `--bugs` the one that tests it.
pub(crate) fn main(options: &Options) -> Result<()> {
    let bugs = options.arguments.iter().any(|argument| argument.starts_with("--bug"));
    let program = if bugs { BUGS } else { ["--bin", "sim"].as_slice() };
    let mut arguments = vec!["run", "--release", "--quiet", "--package", "feedrail-tests"];
    arguments.extend(program.iter().copied().chain(["--"]));
    arguments.extend(options.arguments.iter().map(String::as_str));
    crate::run("cargo", &arguments, &[])
}

/// Runs `count` worlds of the simulator.
pub(crate) fn worlds(count: u32) -> Result<()> {
    let sim = crate::built_for_tests()?.join("sim");
    crate::run(&sim.to_string_lossy(), &["--seeds", &count.to_string()], &[])
}

/// Tests whether the simulated worlds detect deliberate bugs.
pub(crate) fn bugs() -> Result<()> {
    crate::run("cargo", &[&["run", "--quiet", "--package", "feedrail-tests"], BUGS].concat(), &[])
}

const BUGS: &[&str] = &["--bin", "sim-bugs", "--features", "deliberate-bugs"];

//! Debian packages of the target and the command line.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::lab::guest::{self, Guest, Suite};
use crate::lab::qemu::Accelerator;
use crate::{root, run};

/// The crates that are packaged.
const CRATES: [&str; 2] = ["feedrail-target", "feedrail-cli"];
/// The shells for which completions are packaged, each with the name of a program's file.
const SHELLS: [(&str, &str, &str); 3] = [("bash", "", ""), ("zsh", "_", ""), ("fish", "", ".fish")];
/// The guest prints this line when all steps have passed.
const PASSED: &str = "life cycle: passed";
/// The Debian suite of the guest, whose C library is the one that packages are built with.
const SUITE: Suite = Suite::Bookworm;

/// Options of `cargo xtask deb`.
#[derive(Args)]
pub(crate) struct Options {
    /// Then install, start, upgrade, remove and purge them in a Debian guest with systemd.
    #[arg(long)]
    life_cycle: bool,
}

/// Builds the packages into out/packages; needs cargo-deb.
pub(crate) fn main(options: &Options) -> Result<()> {
    let release = ["build", "--release", "--locked"];
    let packages = CRATES.map(|name| ["-p", name]).concat();
    let stripped = [
        ("CARGO_TARGET_DIR", "out"),
        ("CARGO_PROFILE_RELEASE_DEBUG", "none"),
        ("CARGO_PROFILE_RELEASE_STRIP", "symbols"),
    ];
    run("cargo", &[&release[..], &packages].concat(), &stripped)?;
    let folder = root().join("out/packages");
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    write_completions(&folder.join("completions"))?;
    run("out/release/feedrail", &["man", "out/packages/man"], &[])?;
    package("1", &folder)?;
    if options.life_cycle {
        let next = folder.join("next");
        package("2", &next)?;
        return live(&folder, &next);
    }
    Ok(())
}

fn write_completions(folder: &Path) -> Result<()> {
    for (shell, prefix, suffix) in SHELLS {
        let folder = folder.join(shell);
        fs::create_dir_all(&folder)?;
        for program in ["feedrail", "feedrail-target"] {
            let mut command = Command::new(root().join("out/release/feedrail"));
            let output = command.args(["completions", shell, program]).output()?;
            ensure!(output.status.success(), "no completions of {program} for {shell}");
            fs::write(folder.join(format!("{prefix}{program}{suffix}")), output.stdout)?;
        }
    }
    Ok(())
}

/// Packages what is built, with a revision, into a folder.
fn package(revision: &str, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    let folder = folder.display().to_string();
    for name in CRATES {
        let options = ["deb", "-p", name, "--no-build", "--locked", "--quiet"];
        let result = ["--deb-revision", revision, "--output", &folder];
        run("cargo", &[&options[..], &result].concat(), &[("CARGO_TARGET_DIR", "out")])
            .context("cargo-deb makes packages: cargo install cargo-deb --locked")?;
    }
    Ok(())
}

/// Boots a guest that installs the packages, upgrades to the next ones, and purges them.
fn live(first: &Path, next: &Path) -> Result<()> {
    let kernel = Guest::build(SUITE)?;
    let initrd = root().join("out/lab/packages.initrd");
    let script = root().join("tests/packages/build-guest.sh");
    let paths = [&script, first, next, &initrd].map(|path| path.display().to_string());
    let [script, first, next, output] = paths.each_ref().map(String::as_str);
    guest::run_fetching(&[script, SUITE.name(), first, next, output])?;
    let guest = kernel.with_initrd(initrd);
    let console = Accelerator::choose(&kernel).boot(&guest)?;
    for (_, step) in console.lines().filter_map(|line| line.split_once("life cycle: ")) {
        println!("{step}");
    }
    let log = root().join("out/lab/packages.log");
    fs::write(&log, &console)?;
    ensure!(console.contains(PASSED), "a step failed: see {}", log.display());
    Ok(())
}

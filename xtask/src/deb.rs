//! `cargo xtask deb`: Debian packages of the target and the command line.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::lab::guest::{self, Guest, Suite};
use crate::lab::qemu::Accelerator;
use crate::release::architecture::Architecture;
use crate::release::programs;
use crate::{root, run};

/// Crates that have a Debian package.
const CRATES: [&str; 2] = ["feedrail-target", "feedrail-cli"];
/// Line that the guest prints when all steps have passed.
const PASSED: &str = "life cycle: passed";
/// Debian suite of the guest, whose C library the packages are built with.
const SUITE: Suite = Suite::Bookworm;

/// Options of `cargo xtask deb`.
#[derive(Args)]
pub(crate) struct Options {
    /// Then install, start, upgrade, remove and purge them in a Debian guest with systemd.
    #[arg(long)]
    life_cycle: bool,
}

/// Origin of the programs to package.
pub(crate) enum Built {
    /// Programs of this machine, with its C library.
    Here,
    /// Programs of a release, with an old C library.
    Crossed(Architecture),
}

/// Folder of the manual pages and completions, as the manifests of the packages refer to it.
pub(crate) fn extras() -> PathBuf {
    root().join("out/packages")
}

/// Builds the packages into out/packages; needs cargo-deb.
pub(crate) fn main(options: &Options) -> Result<()> {
    let build = ["build", "--profile", "dist", "--locked"];
    let packages = CRATES.map(|name| ["-p", name]).concat();
    run("cargo", &[&build[..], &packages].concat(), &[("CARGO_TARGET_DIR", "out")])?;
    let folder = extras();
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    let feedrail = root().join("out/dist/feedrail");
    programs::write_completions(&feedrail, &folder.join("completions"))?;
    programs::write_manual(&feedrail, &folder.join("man"))?;
    let search_path = std::env::var("PATH")?;
    package("1", &folder, &Built::Here, &search_path)?;
    if options.life_cycle {
        let next = folder.join("next");
        package("2", &next, &Built::Here, &search_path)?;
        return live(&folder, &next);
    }
    Ok(())
}

/// Packages the built programs with a Debian revision. `path` is the search path for cargo-deb.
pub(crate) fn package(revision: &str, folder: &Path, built: &Built, path: &str) -> Result<()> {
    fs::create_dir_all(folder)?;
    let folder = folder.display().to_string();
    let (built_in, target) = match built {
        Built::Here => ("out".to_owned(), vec![]),
        Built::Crossed(architecture) => {
            (architecture.programs_dir(), vec!["--target".to_owned(), architecture.triple()])
        }
    };
    let target: Vec<&str> = target.iter().map(String::as_str).collect();
    let variables = [("CARGO_TARGET_DIR", &*built_in), ("PATH", path)];
    for name in CRATES {
        let options = ["deb", "-p", name, "--no-build", "--profile", "dist", "--locked", "--quiet"];
        let result = ["--deb-revision", revision, "--output", &folder];
        run("cargo", &[&options[..], &result, &target].concat(), &variables)
            .context("cargo-deb makes packages: cargo install cargo-deb --locked")?;
    }
    Ok(())
}

/// Boots a guest that installs the packages in `first`, upgrades to those in `next`, and purges
/// them.
pub(crate) fn live(first: &Path, next: &Path) -> Result<()> {
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

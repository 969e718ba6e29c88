//! The steps of continuous integration.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{sim, tidy};

/// Worlds that are simulated, besides those that `cargo test` tries.
const SEEDS: u32 = 500;

/// All checks, the quick ones first.
pub(crate) fn run() -> Result<()> {
    let deny_warnings = [("RUSTDOCFLAGS", "-D warnings")];
    tidy::run(&tidy::Options::default())?;
    cargo("fmt --all --check")?;
    cargo("clippy --workspace --all-targets --locked -- -D warnings")?;
    cargo("check --package feedrail-rdma --features link-rdma-core --locked")?;
    crate::run("cargo", &["doc", "--workspace", "--no-deps", "--locked"], &deny_warnings)?;
    packages()?;
    dependencies()?;
    cargo("test --workspace")?;
    as_shipped()?;
    sim::seeds(SEEDS)?;
    sim::bugs()?;
    linked()?;
    loom()
}

/// Packages all that is published, as crates.io would get it. Uncommitted changes are packaged too.
fn packages() -> Result<()> {
    cargo("publish --dry-run --workspace --no-verify --allow-dirty --locked")
}

/// The rules of `deny.toml` for dependencies, where `cargo-deny` is installed. Its database of
/// advisories has to be fetched.
fn dependencies() -> Result<()> {
    if !succeeds(&["deny", "--version"]) {
        eprintln!(
            "skipped: licences and advisories of dependencies, because cargo-deny is not installed"
        );
        return Ok(());
    }
    cargo("deny check licenses bans sources")?;
    if !succeeds(&["deny", "fetch", "db"]) {
        eprintln!("skipped: advisories, because `cargo deny fetch db` cannot fetch their database");
        return Ok(());
    }
    cargo("deny check advisories")
}

/// Whether cargo does this without an error; its output is not shown.
fn succeeds(arguments: &[&str]) -> bool {
    let mut command = Command::new("cargo");
    let quiet = command.args(arguments).current_dir(crate::root());
    let status = quiet.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// The packagers' build, where there is something to link with.
fn linked() -> Result<()> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        eprintln!("skipped: linking with rdma-core, because libibverbs-dev is not installed");
        return Ok(());
    }
    cargo("test --package feedrail-rdma --lib --features link-rdma-core linked")
}

/// The protocol as it is shipped: optimisations of the compiler have had errors that show neither
/// in the profile of other tests nor while overflow is checked.
fn as_shipped() -> Result<()> {
    cargo("test --release --package feedrail-roce-proto --lib")
}

/// Loom explores every interleaving, so it gets a build of its own with its own primitives. The
/// tests take 20 s, and their build as programs are shipped took 376 s.
pub(crate) fn loom() -> Result<()> {
    let crates =
        ["--package=feedrail-rdma", "--package=feedrail-target", "--package=feedrail-initiator"];
    let arguments = ["test", "--lib", "--release", "--target-dir", "out/loom", "loom"];
    crate::run(
        "cargo",
        &[&arguments[..1], &crates, &arguments[1..]].concat(),
        &[
            ("RUSTFLAGS", "--cfg loom"),
            ("LOOM_MAX_PREEMPTIONS", "3"),
            ("CARGO_PROFILE_RELEASE_LTO", "off"),
            ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "2"),
            ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
        ],
    )
}

/// Registered memory is named by address, as devices do, so its provenance has to be exposed;
/// property tests look for cases that failed before, in a file. Interpreted code takes hundreds of
/// times as long, so there are fewer cases.
pub(crate) fn miri() -> Result<()> {
    let arguments = "run nightly cargo miri test --package feedrail-rdma --lib --target-dir out/miri software::regions";
    crate::run(
        "rustup",
        &arguments.split(' ').collect::<Vec<_>>(),
        &[
            ("MIRIFLAGS", "-Zmiri-permissive-provenance -Zmiri-disable-isolation"),
            ("PROPTEST_CASES", "16"),
        ],
    )
}

fn cargo(args: &str) -> Result<()> {
    crate::run("cargo", &args.split(' ').collect::<Vec<_>>(), &[])
}

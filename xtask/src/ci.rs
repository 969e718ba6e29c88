//! What continuous integration runs.

use anyhow::Result;

use crate::tidy;

/// All checks, the quick ones first.
pub(crate) fn run() -> Result<()> {
    let deny_warnings = [("RUSTDOCFLAGS", "-D warnings")];
    tidy::run()?;
    cargo("fmt --all --check")?;
    cargo("clippy --workspace --all-targets --locked -- -D warnings")?;
    crate::run("cargo", &["doc", "--workspace", "--no-deps", "--locked"], &deny_warnings)?;
    cargo("test --workspace")?;
    loom()
}

/// Loom explores every interleaving, so it gets a build of its own with its own primitives.
pub(crate) fn loom() -> Result<()> {
    crate::run(
        "cargo",
        &["test", "--package", "rdma", "--lib", "--release", "--target-dir", "out/loom", "loom"],
        &[("RUSTFLAGS", "--cfg loom"), ("LOOM_MAX_PREEMPTIONS", "3")],
    )
}

fn cargo(args: &str) -> Result<()> {
    crate::run("cargo", &args.split(' ').collect::<Vec<_>>(), &[])
}

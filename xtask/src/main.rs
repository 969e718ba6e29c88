//! Developer chores, one subcommand each: `cargo xtask --help`.
#![forbid(unsafe_code)]

mod bench;
mod ci;
mod deb;
mod lab;
mod release;
mod shape;
mod sim;
mod source;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};

/// Developer chores of the Feedrail workspace.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Checks of continuous integration: formatting, lints, documentation, house rules, tests,
    /// simulated worlds, the Python package, the kernel lab.
    Ci(ci::Options),
    /// House rules that no other tool checks: file sizes, SAFETY comments, banned words, names,
    /// comments.
    Tidy(tidy::Options),
    /// The cost of Feedrail, beside the limits of the machine, measured in one run.
    #[command(disable_help_flag = true)]
    Bench(bench::Options),
    /// How the crates are laid out: files, circles of imports, and how much is public.
    Shape(source::Tree),
    /// The Linux kernel's own NVMe over RDMA, host and target, against ours, in QEMU.
    Lab(lab::Options),
    /// Debian packages of the target and the command line, in out/packages.
    Deb(deb::Options),
    /// Everything that is published, made into out/release-files, tried and published: wheels,
    /// tarballs, Debian packages, a container image, checksums, a bill of materials, notes.
    Release(release::Options),
    /// Targets, hosts, disks and networks in simulated worlds, one for each seed, in which
    /// everything goes wrong.
    #[command(disable_help_flag = true)]
    Sim(sim::Options),
    /// Verified I/O between real processes while either side is killed again and again.
    Soak {
        /// How often each side is killed.
        #[arg(long, default_value_t = 50)]
        kills: u32,
    },
    /// The answers to hosts and targets that break the rules, and their cost for well-behaved ones.
    /// Takes minutes; `FEEDRAIL_HOSTILE_ONLY=WORDS` in the environment takes only those whose
    /// description has the words.
    Hostile,
    /// Makes docs/status-page.png, a picture of a target's status page; needs chromium.
    Screenshot,
    /// Interpret the tests of registered memory with Miri; needs a nightly compiler with `miri` and
    /// `rust-src`.
    Miri,
    /// Model-check with loom the state that threads share without a lock, and their wake-ups.
    Loom,
}

fn main() -> ExitCode {
    let result = match &Args::parse().chore {
        Chore::Ci(options) => ci::main(options),
        Chore::Tidy(options) => tidy::run(options),
        Chore::Bench(options) => bench::main(options),
        Chore::Shape(tree) => shape::main(tree),
        Chore::Lab(options) => lab::main(options),
        Chore::Deb(options) => deb::main(options),
        Chore::Release(options) => release::main(options),
        Chore::Sim(options) => sim::main(options),
        Chore::Soak { kills } => soak(*kills),
        Chore::Hostile => hostile(),
        Chore::Screenshot => screenshot(),
        Chore::Miri => ci::miri(),
        Chore::Loom => ci::loom(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn hostile() -> Result<()> {
    let test =
        "test --release -p feedrail-tests --test hostile --no-fail-fast -- --ignored --nocapture";
    run("cargo", &test.split(' ').collect::<Vec<_>>(), &[])
}

fn screenshot() -> Result<()> {
    let test = "test --workspace --test command_line -- status_page:: --nocapture";
    let path = root().join("docs/status-page.png").display().to_string();
    run("cargo", &test.split(' ').collect::<Vec<_>>(), &[("FEEDRAIL_SCREENSHOT", &path)])
}

fn soak(kills: u32) -> Result<()> {
    let test = "test --release -p feedrail-tests --test daemons -- endurance:: --nocapture";
    let kills = kills.to_string();
    run("cargo", &test.split(' ').collect::<Vec<_>>(), &[("FEEDRAIL_SOAK_KILLS", &kills)])
}

/// Root folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}

/// Builds the programs of `cargo test --workspace`, and returns their folder. Another selection of
/// packages would have other features, and would compile most crates again.
fn built_for_tests() -> Result<PathBuf> {
    run("cargo", &["test", "--workspace", "--no-run", "--quiet"], &[])?;
    Ok(root().join("out/debug"))
}

/// Runs a command in the root of the workspace. It shares our stdout and stderr.
#[expect(clippy::disallowed_methods, reason = "whoever waits wants to know what took the time")]
fn run(program: &str, args: &[&str], env: &[(&str, &str)]) -> Result<()> {
    let line = format!("{program} {}", args.join(" "));
    eprintln!("+ {line}");
    let begin = Instant::now();
    let status = Command::new(program)
        .args(args)
        .envs(env.iter().copied())
        .current_dir(root())
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed: {status}");
    eprintln!("took {} s: {line}", begin.elapsed().as_secs());
    Ok(())
}

/// Runs a command in the root of the workspace, and returns its stdout.
fn output(program: &str, args: &[&str]) -> Result<String> {
    let line = format!("{program} {}", args.join(" "));
    let output = Command::new(program)
        .args(args)
        .current_dir(root())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed: {}: {}", output.status, message.trim());
    String::from_utf8(output.stdout).with_context(|| format!("`{line}` printed no UTF-8"))
}

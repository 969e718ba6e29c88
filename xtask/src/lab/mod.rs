//! `cargo xtask lab`: tests against the Linux kernel's NVMe-oF host and target, in QEMU.

mod conformance;
pub(crate) mod guest;
pub(crate) mod qemu;
mod report;
mod rotation;
mod scenario;
mod watch;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::{root, run};
use guest::{Guest, Suite};
use qemu::Accelerator;
use report::LabReport;
use scenario::Run;

/// Suite with an older kernel, on which the scenarios of the set of that name run, too.
const OLDER: Suite = Suite::Bookworm;

/// Options of `cargo xtask lab`.
#[derive(Args, Default)]
pub(crate) struct Options {
    /// Run every scenario, not just those of continuous integration, and some on an older kernel
    /// too.
    #[arg(long)]
    full: bool,
    /// Run the set of continuous integration or, where the guest is emulated, the smoke set on one
    /// provider each and a fifth of the other runs: another fifth at the next commit.
    #[arg(long, conflicts_with_all = ["full", "scenarios"])]
    gate: bool,
    /// Give a prompt in the guest instead of running scenarios.
    #[arg(long, conflicts_with_all = ["full", "gate", "scenarios"])]
    shell: bool,
    /// The Debian suite that the guest is made from.
    #[arg(long, value_enum, conflicts_with = "full", default_value_t)]
    suite: Suite,
    /// Run them on this provider only.
    #[arg(long, value_parser = ["verbs", "soft"])]
    provider: Option<String>,
    /// Capture the packets that cross between the kernel's device and a peer on soft.
    #[arg(long)]
    capture: bool,
    /// How to print the results.
    #[arg(long, short, value_enum, default_value_t)]
    output_format: OutputFormat,
    /// Scenarios to run, by the beginning of their names.
    scenarios: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    #[default]
    Normal,
    /// A line of JSON for each scenario and provider.
    Json,
}

/// Runs the lab as a step of continuous integration.
pub(crate) fn ci(full: bool) -> Result<()> {
    main(&Options { full, gate: !full, ..Options::default() })
}

/// Boots the guests of the suites and runs their scenarios, or opens a shell in a guest.
pub(crate) fn main(options: &Options) -> Result<()> {
    if options.shell {
        return shell(options);
    }
    let mut passed = run_on(options.suite, options)?;
    if options.full {
        passed &= run_on(OLDER, options)?;
    }
    ensure!(passed, "the logs are in {}", jobs().display());
    Ok(())
}

fn shell(options: &Options) -> Result<()> {
    let guest = Guest::build(options.suite)?;
    let job = prepare_job(options.suite, &programs(false)?)?;
    fs::write(job.join("shell"), "")?;
    Accelerator::choose(&guest).interact(&guest, &job)
}

/// Boots the guest of a suite, runs the selected scenarios, and prints their results. Returns
/// whether all passed.
fn run_on(suite: Suite, options: &Options) -> Result<bool> {
    let guest = Guest::build(suite)?;
    let job = prepare_job(suite, &programs(options.gate)?)?;
    let machine = Accelerator::choose(&guest);
    let mut runs = select(&job, suite, options)?;
    if options.gate && machine == Accelerator::Emulated {
        let commits = crate::output("git", &["rev-list", "--count", "HEAD"])?;
        runs = rotation::part(&runs, commits.trim().parse()?);
    }
    if runs.iter().any(|run| run.scenario == conformance::NAME) {
        fs::copy(conformance::build()?, job.join("bin").join(conformance::NAME))?;
    }
    let list: String = runs
        .iter()
        .map(|run| format!("{} {} {}\n", run.scenario, run.provider, run.limit_seconds))
        .collect();
    fs::write(job.join("scenarios.list"), list)?;
    if options.capture {
        fs::write(job.join("capture"), "")?;
    }
    let kernel = guest.kernel_version();
    eprintln!("{} runs of scenarios on Linux {kernel} ({machine})", runs.len());
    let ended = machine.run(&guest, &job, &runs);
    let report = LabReport::read(kernel, &job, &runs);
    match options.output_format {
        OutputFormat::Normal => print!("{report}"),
        OutputFormat::Json => print!("{}", report.to_json_lines()),
    }
    ended?;
    Ok(report.all_passed())
}

/// Folder of the folders that guests mount, one for each suite.
fn jobs() -> PathBuf {
    root().join("out/lab/run")
}

/// Builds the programs for the guest, and returns their folder: release builds or, in the gate, the
/// builds of `cargo test`.
fn programs(gate: bool) -> Result<PathBuf> {
    if gate {
        return crate::built_for_tests();
    }
    run("cargo", &["build", "--release", "--bin", "feedrail", "--bin", "feedrail-target"], &[])?;
    Ok(root().join("out/release"))
}

/// Creates the folder that the guest mounts, with scripts and programs.
fn prepare_job(suite: Suite, programs: &Path) -> Result<PathBuf> {
    let job = jobs().join(suite.name());
    if job.exists() {
        fs::remove_dir_all(&job).with_context(|| job.display().to_string())?;
    }
    fs::create_dir_all(job.join("bin"))?;
    let lab = root().join("tests/kernel-lab");
    for name in ["run.sh", "lib.sh", "kernel-target.sh", "ratio.sh"] {
        fs::copy(lab.join(name), job.join(name))?;
    }
    copy_folder(&lab.join("scenarios"), &job.join("scenarios"))?;
    for name in ["feedrail", "feedrail-target"] {
        fs::copy(programs.join(name), job.join("bin").join(name))?;
    }
    Ok(job)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

fn select(job: &Path, suite: Suite, options: &Options) -> Result<Vec<Run>> {
    let mut runs = scenario::select(&job.join("scenarios"), |name, sets| {
        is_wanted(name, sets, suite, options)
    })?;
    runs.retain(|run| options.provider.as_ref().is_none_or(|wanted| *wanted == run.provider));
    ensure!(!runs.is_empty(), "no scenario has such a name: see tests/kernel-lab/scenarios");
    Ok(runs)
}

fn is_wanted(name: &str, sets: &[String], suite: Suite, options: &Options) -> bool {
    let is_in = |set: &str| sets.iter().any(|other| other == set);
    if !options.scenarios.is_empty() {
        return options.scenarios.iter().any(|wanted| name.starts_with(wanted.as_str()));
    }
    if suite == OLDER {
        return is_in(OLDER.name());
    }
    options.full || is_in("ci")
}

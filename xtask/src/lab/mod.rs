//! The kernel lab: the Linux kernel's own peers, in QEMU.

mod guest;
mod qemu;
mod report;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::{root, run};
use guest::Guest;
use qemu::Machine;
use report::Report;

/// The longest that one scenario may take, in seconds of the host.
const SCENARIO_SECONDS: u64 = 300;
/// Scenarios of the set that continuous integration runs.
const CI: [&str; 4] = ["identify", "data", "filesystem", "initiator"];

/// Options of `cargo xtask lab`.
#[derive(Args)]
pub(crate) struct Options {
    /// Run every scenario, not just those of continuous integration.
    #[arg(long)]
    full: bool,
    /// Give a prompt in the guest instead of running scenarios.
    #[arg(long, conflicts_with_all = ["full", "scenarios"])]
    shell: bool,
    /// The Debian suite that the guest is made from: trixie has Linux 6.12, bookworm 6.1.
    #[arg(long, default_value = "trixie")]
    suite: String,
    /// Scenarios to run, by the beginning of their names.
    scenarios: Vec<String>,
}

/// Runs the lab.
pub(crate) fn main(options: &Options) -> Result<()> {
    let guest = Guest::build(&options.suite)?;
    let job = prepare_job()?;
    let machine = Machine::choose(&guest);
    if options.shell {
        fs::write(job.join("shell"), "")?;
        return machine.interact(&guest, &job);
    }
    let scenarios = select(&job, options)?;
    let list: String =
        scenarios.iter().map(|name| format!("{name} {SCENARIO_SECONDS}\n")).collect();
    fs::write(job.join("scenarios.list"), list)?;
    eprintln!("{} scenarios on Linux {} ({machine})", scenarios.len(), guest.kernel_version());
    let limit = SCENARIO_SECONDS * scenarios.len() as u64 + 120;
    machine.run(&guest, &job, limit)?;
    let report = Report::read(&job, &scenarios)?;
    print!("{report}");
    ensure!(report.all_passed(), "the logs are in {}", job.join("logs").display());
    Ok(())
}

/// The folder that the guest sees: scripts and binaries.
fn prepare_job() -> Result<PathBuf> {
    let job = root().join("out/lab/run");
    if job.exists() {
        fs::remove_dir_all(&job).with_context(|| job.display().to_string())?;
    }
    fs::create_dir_all(job.join("bin"))?;
    let lab = root().join("tests/kernel-lab");
    for name in ["run.sh", "lib.sh"] {
        fs::copy(lab.join(name), job.join(name))?;
    }
    copy_folder(&lab.join("scenarios"), &job.join("scenarios"))?;
    run("cargo", &["build", "--release", "--bin", "feedrail", "--bin", "feedrail-target"], &[])?;
    for name in ["feedrail", "feedrail-target"] {
        fs::copy(root().join("out/release").join(name), job.join("bin").join(name))?;
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

fn select(job: &Path, options: &Options) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(job.join("scenarios"))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if is_wanted(&name, options) {
            names.push(name);
        }
    }
    if names.is_empty() {
        bail!("no scenario has such a name: see tests/kernel-lab/scenarios");
    }
    names.sort();
    Ok(names)
}

fn is_wanted(name: &str, options: &Options) -> bool {
    if options.scenarios.is_empty() {
        return options.full || CI.contains(&name);
    }
    options.scenarios.iter().any(|wanted| name.starts_with(wanted.as_str()))
}

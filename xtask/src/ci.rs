//! Continuous integration: the gate, which every change passes, and everything else.

mod changes;
mod step;
mod steps;

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use changes::Changes;
use step::{CiStep, StepDecision};
pub(crate) use steps::{loom, miri};

/// The gate is to take less than this on a slow machine, in seconds.
const GATE_SECONDS: u64 = 25 * 60;

/// Options of `cargo xtask ci`.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Run every step, and all of each: all simulated worlds, deliberate bugs, loom, the whole
    /// kernel lab. Takes more than an hour.
    #[arg(long)]
    pub(crate) full: bool,
    /// Continue after a step that fails.
    #[arg(long)]
    keep_going: bool,
    /// Print the steps, when each is run, and why; run nothing.
    #[arg(long)]
    list: bool,
    /// Run these steps only, by name.
    steps: Vec<String>,
}

/// Result of a step, for the table at the end.
struct Row {
    name: &'static str,
    seconds: u64,
    outcome: String,
}

/// Runs the steps that are wanted, and prints how long each took.
pub(crate) fn main(options: &Options) -> Result<()> {
    if let Some(name) = options.steps.iter().find(|name| steps::named(name).is_none()) {
        bail!("there is no step `{name}`: see `cargo xtask ci --list`");
    }
    if options.list {
        steps::STEPS.iter().for_each(|step| println!("{step}"));
        return Ok(());
    }
    let changes = Changes::since(&last_full()?)?;
    let mut rows = Vec::new();
    let mut failure = Ok(());
    for step in steps::STEPS {
        let row = take(step, options, &changes, &mut failure);
        rows.push(row);
        if failure.is_err() && !options.keep_going {
            break;
        }
    }
    report(&rows, options);
    failure?;
    if options.full && options.steps.is_empty() {
        record_full()?;
    }
    Ok(())
}

/// Runs one step, or says why not.
#[expect(clippy::disallowed_methods, reason = "the table shows what took the time")]
fn take(step: &CiStep, options: &Options, changes: &Changes, failure: &mut Result<()>) -> Row {
    let decision = match options.steps.as_slice() {
        [] => step.decide(options.full, changes),
        names if names.iter().any(|name| name == step.name) => StepDecision::Run,
        _ => StepDecision::Skip("not asked for"),
    };
    let StepDecision::Skip(why) = decision else {
        let begin = Instant::now();
        let result = (step.run)(options.full);
        let seconds = begin.elapsed().as_secs();
        let outcome = if result.is_ok() { "passed" } else { "FAILED" };
        eprintln!("{outcome} after {seconds} s: {}", step.name);
        if let Err(error) = result {
            eprintln!("{}: {error:#}", step.name);
            *failure = Err(error.context(format!("step `{}`", step.name)));
        }
        return Row { name: step.name, seconds, outcome: outcome.to_owned() };
    };
    Row { name: step.name, seconds: 0, outcome: format!("skipped: {why}") }
}

fn report(rows: &[Row], options: &Options) {
    println!("{:<16}{:>8}  outcome", "step", "seconds");
    for Row { name, seconds, outcome } in
        rows.iter().filter(|row| row.outcome != "skipped: not asked for")
    {
        println!("{name:<16}{seconds:>8}  {outcome}");
    }
    let total: u64 = rows.iter().map(|row| row.seconds).sum();
    println!("{:<16}{total:>8}", "total");
    if total > GATE_SECONDS && !options.full {
        println!("warning: the gate is to take less than {GATE_SECONDS} s");
    }
}

fn record() -> PathBuf {
    crate::root().join("xtask/last-full")
}

/// The commit that `--full` passed at last.
fn last_full() -> Result<String> {
    let path = record();
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    Ok(text.trim().to_owned())
}

/// Notes the commit that has passed, if what has passed is that commit.
fn record_full() -> Result<()> {
    if !crate::output("git", &["status", "--porcelain"])?.is_empty() {
        println!("xtask/last-full stays: there are uncommitted changes");
        return Ok(());
    }
    let commit = crate::output("git", &["rev-parse", "HEAD"])?;
    fs::write(record(), &commit)?;
    println!("xtask/last-full is now {}: commit it", commit.trim());
    Ok(())
}

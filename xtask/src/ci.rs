//! `cargo xtask ci`: the gate, which every change must pass, and the steps of `--full`.

mod changes;
mod last_passed;
mod step;
mod steps;

use std::time::Instant;

use anyhow::{Result, bail};

use last_passed::LastPassed;
use step::{CiStep, NotChecked, StepDecision};
pub(crate) use steps::{loom, miri};

/// Limit for the duration of the gate on a slow machine, in seconds.
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
    /// Print the steps, when each is run, why, and whether it would be run now; run nothing.
    #[arg(long)]
    list: bool,
    /// Run these steps only, by name.
    steps: Vec<String>,
}

/// Row of the table of results.
struct Row {
    name: &'static str,
    seconds: u64,
    outcome: String,
}

impl Row {
    fn has_passed(&self) -> bool {
        self.outcome == PASSED
    }
}

/// Outcome of a step without a failure.
const PASSED: &str = "passed";

/// Runs the selected steps, and prints how long each took.
pub(crate) fn main(options: &Options) -> Result<()> {
    if let Some(name) = options.steps.iter().find(|name| steps::named(name).is_none()) {
        bail!("there is no step `{name}`: see `cargo xtask ci --list`");
    }
    let last_passed = LastPassed::read()?;
    if options.list {
        for step in steps::STEPS {
            let decision = step.decide(options.full, last_passed.commit(step.name));
            println!("{step}; now {decision}");
        }
        return Ok(());
    }
    let mut rows = Vec::new();
    let mut failure = Ok(());
    for step in steps::STEPS {
        let row = take(step, options, &last_passed, &mut failure);
        rows.push(row);
        if failure.is_err() && !options.keep_going {
            break;
        }
    }
    report(&rows, options);
    let passed = |step: &&CiStep| {
        step.is_conditional() && rows.iter().any(|row| row.name == step.name && row.has_passed())
    };
    let passed: Vec<_> = steps::STEPS.iter().filter(passed).map(|step| step.name).collect();
    last_passed.record(&passed)?;
    failure
}

/// Runs one step, or prints why it is skipped.
#[expect(clippy::disallowed_methods, reason = "the table shows what took the time")]
fn take(
    step: &CiStep,
    options: &Options,
    last_passed: &LastPassed,
    failure: &mut Result<()>,
) -> Row {
    let decision = match options.steps.as_slice() {
        [] => step.decide(options.full, last_passed.commit(step.name)),
        names if names.iter().any(|name| name == step.name) => StepDecision::Run,
        _ => StepDecision::Skip("not asked for"),
    };
    let StepDecision::Skip(_) = decision else {
        let begin = Instant::now();
        let result = (step.run)(options.full);
        let seconds = begin.elapsed().as_secs();
        let outcome = match result {
            Ok(()) => PASSED.to_owned(),
            Err(error) if error.is::<NotChecked>() => format!("skipped: {error}"),
            Err(error) => {
                eprintln!("{}: {error:#}", step.name);
                *failure = Err(error.context(format!("step `{}`", step.name)));
                "FAILED".to_owned()
            }
        };
        eprintln!("{outcome} after {seconds} s: {}", step.name);
        return Row { name: step.name, seconds, outcome };
    };
    Row { name: step.name, seconds: 0, outcome: decision.to_string() }
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

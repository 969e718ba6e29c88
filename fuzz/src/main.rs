//! Runs fuzz targets without a coverage-guided fuzzer, and makes the seeds of all of them.

#[path = "../../roce-proto/tests/integration/capture/pcap.rs"]
#[allow(dead_code, reason = "made for tests of the packets, outer headers included")]
mod pcap;
mod seeds;

use std::fs;
use std::path::PathBuf;
use std::process::{self, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};
use feedrail_fuzz::run::{Campaign, Finding, execute};
use feedrail_fuzz::{FuzzTarget, TARGETS, corpus};

/// Fuzzes the code that reads bytes of a peer.
#[derive(Parser)]
struct FuzzArguments {
    #[command(subcommand)]
    command: FuzzCommand,
}

#[derive(Subcommand)]
enum FuzzCommand {
    /// Run mutations of a target's corpus.
    Run {
        /// Name of the fuzz target; `all` for one after the other
        target: String,
        /// Number of mutations to run
        #[arg(long, default_value_t = 1_000_000)]
        executions: u64,
        /// Where mutations come from; the same seed gives the same inputs.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Number of threads to run them on
        #[arg(long, default_value_t = 1)]
        jobs: u16,
    },
    /// Run inputs from files.
    Replay {
        /// Name of the fuzz target
        target: String,
        /// The inputs; without any, the target's corpus.
        files: Vec<PathBuf>,
    },
    /// Write the seeds of all targets into their corpora: the recorded session, and scripts of
    /// correct exchanges.
    Seeds,
}

fn main() -> Result<ExitCode> {
    match FuzzArguments::parse().command {
        FuzzCommand::Run { target, executions, seed, jobs } => {
            for target in named(&target)? {
                let corpus = corpus::load(target)?;
                let campaign = Campaign { target: *target, corpus, seed };
                if let Err(finding) = run(&campaign, executions, jobs.max(1)) {
                    return report(&campaign, &finding);
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        FuzzCommand::Replay { target, files } => replay(&target, files),
        FuzzCommand::Seeds => {
            seeds::write()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn named(name: &str) -> Result<Vec<&'static FuzzTarget>> {
    let found: Vec<_> =
        TARGETS.iter().filter(|target| name == "all" || target.name == name).collect();
    if found.is_empty() {
        let names: Vec<_> = TARGETS.iter().map(|target| target.name).collect();
        bail!("there is no target {name:?}; there are {} and all", names.join(", "));
    }
    Ok(found)
}

fn run(campaign: &Campaign, executions: u64, jobs: u16) -> Result<(), Finding> {
    let progress: Vec<AtomicU64> = (0..jobs).map(|_| AtomicU64::new(0)).collect();
    let over = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let watchdog = scope.spawn(|| watch(campaign, executions, &progress, &over));
        let result = campaign.run(executions, &progress);
        over.store(true, Ordering::Relaxed);
        watchdog.thread().unpark();
        result
    });
    let done: u64 = progress.iter().map(|done| done.load(Ordering::Relaxed)).sum();
    println!("{}: {done} executions, seed {}", campaign.target.name, campaign.seed);
    result
}

/// The most that one execution may take: thousands of times its usual duration.
const EXECUTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Says now and then how far it is. Names the execution that hangs, and ends the process: a thread
/// cannot be stopped.
fn watch(campaign: &Campaign, executions: u64, progress: &[AtomicU64], over: &AtomicBool) {
    let read = || progress.iter().map(|done| done.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let jobs = progress.len() as u64;
    let mut before = read();
    while !over.load(Ordering::Relaxed) {
        thread::park_timeout(EXECUTION_TIMEOUT);
        let now = read();
        for (job, (&now, &before)) in now.iter().zip(&before).enumerate() {
            let execution = now * jobs + job as u64;
            if now == before && execution < executions && !over.load(Ordering::Relaxed) {
                let Campaign { target, seed, .. } = campaign;
                eprintln!("{}: execution {execution} of seed {seed} hangs", target.name);
                process::exit(1);
            }
        }
        if !over.load(Ordering::Relaxed) {
            let done: u64 = now.iter().sum();
            eprintln!("{}: {done} of {executions} executions", campaign.target.name);
        }
        before = now;
    }
}

fn report(campaign: &Campaign, finding: &Finding) -> Result<ExitCode> {
    let Finding { execution, input, message } = finding;
    let name = campaign.target.name;
    let path = PathBuf::from(format!("{name}-{}-{execution}.input", campaign.seed));
    fs::write(&path, input).with_context(|| path.display().to_string())?;
    eprintln!("{name}: execution {execution} of seed {}: {message}", campaign.seed);
    eprintln!("again: cargo run -p feedrail-fuzz replay {name} {}", path.display());
    Ok(ExitCode::FAILURE)
}

fn replay(name: &str, files: Vec<PathBuf>) -> Result<ExitCode> {
    for target in named(name)? {
        let inputs: Vec<Vec<u8>> = match files.is_empty() {
            true => corpus::load(target)?,
            false => files
                .iter()
                .map(|path| fs::read(path).with_context(|| path.display().to_string()))
                .collect::<Result<_>>()?,
        };
        for input in &inputs {
            if let Err(message) = execute(target, input) {
                eprintln!("{}: {message}", target.name);
                return Ok(ExitCode::FAILURE);
            }
        }
        println!("{}: {} inputs", target.name, inputs.len());
    }
    Ok(ExitCode::SUCCESS)
}

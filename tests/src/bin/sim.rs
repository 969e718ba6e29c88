//! Runs simulated worlds, each a function of its seed, until one fails or all have ended: `cargo
//! xtask sim`.
#![forbid(unsafe_code)]

use std::panic;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use clap::Parser;
use feedrail_tests::world::{Totals, chaos_run};

/// Seeds in which each fault and each recovery happens.
const COMPLETE: u64 = 100;

/// Worlds of hosts and targets in which everything goes wrong that can.
#[derive(Parser)]
struct Args {
    /// Number of seeds to run
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed of them
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this seed only
    #[arg(long)]
    seed: Option<u64>,
    /// Print the events in virtual time; for one seed
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Threads. Each runs a world of its own.
    #[arg(long)]
    jobs: Option<usize>,
}

/// The state that the threads share.
#[derive(Default)]
struct Progress {
    next: AtomicU64,
    failed: Mutex<Option<u64>>,
    sum: Mutex<Sum>,
}

#[derive(Default)]
struct Sum {
    seeds: u64,
    totals: Totals,
    /// The fewest commands of a world.
    commands: Option<u64>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let seeds = match args.seed {
        Some(seed) => seed..seed + 1,
        None => args.first..args.first + args.seeds,
    };
    let jobs = args.jobs.unwrap_or_else(|| thread::available_parallelism().map_or(1, Into::into));
    let progress = Progress { next: AtomicU64::new(seeds.start), ..Progress::default() };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| work(&progress, seeds.end, args.trace));
        }
    });
    report(&progress)
}

/// Runs one seed after the other until one has failed.
fn work(progress: &Progress, end: u64, trace: bool) {
    while progress.failed.lock().expect("no panic under it").is_none() {
        let seed = progress.next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return;
        }
        match panic::catch_unwind(|| chaos_run(seed, trace)) {
            Ok(outcome) => {
                let mut sum = progress.sum.lock().expect("no panic under it");
                sum.seeds += 1;
                sum.totals.add_all(&outcome.totals);
                let commands = outcome.totals.get("work: commands");
                sum.commands = Some(sum.commands.map_or(commands, |fewest| fewest.min(commands)));
            }
            Err(_) => {
                // The panic has printed its message.
                let mut failed = progress.failed.lock().expect("no panic under it");
                *failed = Some(failed.map_or(seed, |other| other.min(seed)));
            }
        }
    }
}

fn report(progress: &Progress) -> ExitCode {
    let sum = progress.sum.lock().expect("no panic under it");
    let commands = sum.commands.unwrap_or(0);
    println!("{} worlds ended well, each of {commands} commands or more", sum.seeds);
    println!("{}", sum.totals);
    let missing = sum.totals.missing();
    if sum.seeds >= COMPLETE && !missing.is_empty() {
        println!("in {} worlds these events never happened: {}", sum.seeds, missing.join(", "));
        return ExitCode::FAILURE;
    }
    match *progress.failed.lock().expect("no panic under it") {
        None => ExitCode::SUCCESS,
        Some(seed) => {
            println!("seed {seed} failed; to see it again: cargo xtask sim --seed {seed} --trace");
            ExitCode::FAILURE
        }
    }
}

//! Tests the simulator: each deliberate bug must be found within a number of seeds. `cargo xtask
//! sim --bugs`.
#![forbid(unsafe_code)]

use std::any::Any;
use std::panic;
use std::process::ExitCode;

use clap::Parser;
use feedrail_target::testing::deliberate_bugs as target;
use feedrail_target::testing::deliberate_bugs::Bug as Target;
use feedrail_tests::world::{chaos_run, expect_few_repeats};
use rdma::deliberate_bugs::{self as provider, Bug as Provider};
use roce_proto::deliberate_bugs::{self as protocol, Bug as Protocol};

/// Gives the stack one bug after the other, and looks for a seed that shows it.
#[derive(Parser)]
struct Args {
    /// Tries all bugs, one after the other
    #[arg(long, conflicts_with = "bug")]
    bugs: bool,
    /// This bug; may be repeated.
    #[arg(long, value_name = "NAME")]
    bug: Vec<String>,
    /// Number of seeds to try for each bug
    #[arg(long, default_value_t = 200)]
    seeds: u64,
}

/// A bug, where it is.
#[derive(Clone, Copy)]
enum Bug {
    Protocol(Protocol),
    Provider(Provider),
    Target(Target),
}

const BUGS: &[(&str, Bug)] = &[
    ("drop-flush", Bug::Target(Target::DropFlush)),
    ("ignore-fua", Bug::Target(Target::IgnoreFua)),
    ("acknowledge-early", Bug::Target(Target::AcknowledgeEarly)),
    ("reuse-buffer-early", Bug::Target(Target::ReuseBufferEarly)),
    ("complete-twice", Bug::Target(Target::CompleteTwice)),
    ("drop-abort", Bug::Target(Target::DropAbort)),
    ("ignore-write-protect", Bug::Target(Target::IgnoreWriteProtect)),
    ("keep-progress-block", Bug::Target(Target::KeepProgressBlock)),
    ("lend-out-of-turn", Bug::Target(Target::LendOutOfTurn)),
    ("skip-empty-accounts", Bug::Target(Target::SkipEmptyAccounts)),
    ("bypass-line", Bug::Target(Target::BypassLine)),
    ("ignore-departures", Bug::Target(Target::IgnoreDepartures)),
    ("reset-early", Bug::Target(Target::ResetEarly)),
    ("await-reads", Bug::Target(Target::AwaitReads)),
    ("count-range-unread", Bug::Target(Target::CountRangeUnread)),
    ("skip-rkey-bound", Bug::Provider(Provider::SkipRkeyBound)),
    ("accept-corrupt-packets", Bug::Provider(Provider::AcceptCorruptPackets)),
    ("ignore-psn-gap", Bug::Protocol(Protocol::IgnorePsnGap)),
    ("ignore-losses", Bug::Protocol(Protocol::IgnoreLosses)),
];

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(name) = args.bug.iter().find(|name| BUGS.iter().all(|(known, _)| known != name)) {
        let known = BUGS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        eprintln!("there is no bug {name}; choose among {known}");
        return ExitCode::FAILURE;
    }
    // The panic's message is in the table.
    panic::set_hook(Box::new(|_| ()));
    let wanted = |name: &str| args.bug.is_empty() || args.bug.iter().any(|other| other == name);
    let mut well = true;
    println!("{:<24}{:>6}  how it was found", "bug", "seed");
    for &(name, bug) in BUGS.iter().filter(|(name, _)| wanted(name)) {
        let found = find(bug, args.seeds);
        well &= found.is_some();
        match found {
            Some((seed, how)) => println!("{name:<24}{seed:>6}  {how}"),
            None => println!("{name:<24}{:>6}  not found in {} seeds", "-", args.seeds),
        }
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The first seed that shows a bug, and its message.
fn find(bug: Bug, seeds: u64) -> Option<(u64, String)> {
    set(Some(bug));
    let found = (0..seeds).find_map(|seed| {
        let panic = panic::catch_unwind(|| look(bug, seed)).err()?;
        Some((seed, first_line(&*panic)))
    });
    set(None);
    found
}

/// Runs what can show a bug. A chaos run gives no wrong byte away for lack of congestion control.
fn look(bug: Bug, seed: u64) {
    match bug {
        Bug::Protocol(Protocol::IgnoreLosses) => expect_few_repeats(seed),
        _ => _ = chaos_run(seed, false),
    }
}

/// Gives the stack this bug and no other.
fn set(bug: Option<Bug>) {
    protocol::set(if let Some(Bug::Protocol(bug)) = bug { Some(bug) } else { None });
    provider::set(if let Some(Bug::Provider(bug)) = bug { Some(bug) } else { None });
    target::set(if let Some(Bug::Target(bug)) = bug { Some(bug) } else { None });
}

fn first_line(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}

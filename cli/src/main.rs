//! `feedrail`: NVMe over Fabrics over RDMA from the command line.
//!
//! Each subcommand has a file of its own. Results go to stdout; progress, logs and errors to
//! stderr, an error as one line that begins with `feedrail:`. Exit codes: 0 success, 1 failure, 2
//! wrong usage, 3 and 4 warnings and errors that `doctor` found, 130 interrupted, 141 the reader of
//! stdout closed the pipe.

mod args;
mod bench_checkpoint;
mod bench_loader;
mod check_dhchap_key;
mod checkpoint;
mod clock;
mod closed_stdout;
mod command_trace;
mod completions;
mod config_page;
mod demo;
mod devices;
mod discover;
mod doctor;
mod fields;
mod file_map;
mod gen_dhchap_key;
mod id_ctrl;
mod id_ns;
mod identity;
mod index;
mod interrupt;
mod lanes;
mod latency;
mod list;
mod man;
mod manifest;
mod merge_traces;
mod mount;
mod options;
mod output;
mod partial_file;
mod perf;
mod progress;
mod read;
mod secret_args;
mod seed;
mod serve;
mod session;
mod shards;
mod size;
mod stream;
mod target;
mod target_child;
mod training_data;
mod transfer;
mod unmount;
mod write;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use feedrail_target::daemon::{LogFilter, LogFilterError, colours_are_wanted};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::{Cli, CliCommand};
use crate::bench_checkpoint::RankProcess;
use crate::interrupt::Interrupted;
use crate::output::ReaderGone;
use crate::target_child::TargetProcess;

fn main() -> ExitCode {
    // The target daemon sets up its own logging and reports its own errors.
    if let Some(target) = TargetProcess::of_command_line(std::env::args_os()) {
        return target.run();
    }
    // A rank of `bench-checkpoint` logs nothing.
    if let Some(rank) = RankProcess::of_command_line(std::env::args_os()) {
        return rank.run();
    }
    let cli = Cli::parse();
    if let CliCommand::Serve(serve) = &cli.command
        && serve.prints_json()
    {
        return serve.run_as_daemon(cli.verbose).unwrap_or_else(|error| report(&error));
    }
    let logging = match &cli.command {
        // A mount runs for long, and has a log of its own.
        CliCommand::Mount(_) => Ok(()),
        _ => start_logging(cli.verbose),
    };
    if let Err(error) = logging {
        output::note(format_args!("feedrail: RUST_LOG: {error}"));
        return ExitCode::from(2);
    }
    let ended = match cli.command {
        CliCommand::Doctor(doctor) => doctor.run(),
        command => run(command, cli.verbose).map(|()| ExitCode::SUCCESS),
    };
    ended.unwrap_or_else(|error| report(&error))
}

fn run(command: CliCommand, verbose: u8) -> Result<()> {
    match command {
        CliCommand::Devices(devices) => devices.run(),
        CliCommand::Discover(discover) => discover.run(),
        CliCommand::List(list) => list.run(),
        CliCommand::IdCtrl(id_ctrl) => id_ctrl.run(),
        CliCommand::IdNs(id_ns) => id_ns.run(),
        CliCommand::Read(read) => read.run(),
        CliCommand::Write(write) => write.run(),
        CliCommand::Perf(perf) => perf.run(),
        CliCommand::MergeTraces(merge) => merge.run(),
        CliCommand::BenchLoader(bench_loader) => bench_loader.run(),
        CliCommand::BenchCheckpoint(bench_checkpoint) => bench_checkpoint.run(),
        CliCommand::Completions(completions) => completions.run(),
        CliCommand::Man(man) => man.run(),
        CliCommand::Index(index) => index.run(),
        CliCommand::Manifest(manifest) => manifest.run(),
        CliCommand::Checkpoint(checkpoint) => checkpoint.run(),
        CliCommand::Mount(mount) => mount.run(verbose),
        CliCommand::Unmount(unmount) => unmount.run(),
        CliCommand::Demo(demo) => demo.run(verbose),
        CliCommand::Serve(serve) => serve.run(verbose),
        CliCommand::Target(target) => target.run(),
        CliCommand::GenDhchapKey(gen_key) => gen_key.run(),
        CliCommand::CheckDhchapKey(check_key) => check_key.run(),
        CliCommand::Doctor(_) => unreachable!("handled by the caller"),
    }
}

fn start_logging(verbose: u8) -> Result<(), LogFilterError> {
    let filter = log_filter("error", verbose)?;
    let colours = io::stderr().is_terminal() && colours_are_wanted();
    let log = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(colours)
        // Such errors would be printed to stderr, which panics if stderr is what cannot be written.
        .log_internal_errors(false);
    tracing_subscriber::registry().with(filter.to_filter()).with(log).init();
    Ok(())
}

/// Filter of the log: `quiet` unless `-v` or RUST_LOG asks for something else.
fn log_filter(quiet: &str, verbose: u8) -> Result<LogFilter, LogFilterError> {
    let default = match verbose {
        0 => quiet,
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let asked = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    asked.as_deref().unwrap_or(default).parse()
}

/// Prints the error on one line, and returns the exit code for it.
fn report(error: &anyhow::Error) -> ExitCode {
    if error.is::<ReaderGone>() {
        return ExitCode::from(141);
    }
    output::note(format_args!("feedrail: {error:#}"));
    ExitCode::from(if error.is::<Interrupted>() { 130 } else { 1 })
}

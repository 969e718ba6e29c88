//! The daemon `feedrail-target`: arguments, signals, output and exit status.
//!
//! Standard output has JSON lines only: `listening` or `not_listening` for each address, then
//! `ready`, and `stats` on SIGUSR1 and at the end. Log messages go to standard error. If a reader
//! is too slow, lines are dropped, and no thread that serves hosts is blocked.

mod arguments;
mod check;
mod confine;
mod line_rate;
mod lines;
mod log_filter;
mod log_format;
mod metrics_address;
mod metrics_server;
mod negotiation;
mod notify;
mod one_line;
mod process_log;
mod reload_signal;
mod report;
mod status_page;
mod watchdog;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use self::arguments::DaemonArguments;
use self::confine::Confinement;
use self::lines::LineWriter;
pub use self::log_filter::{LogFilter, LogFilterError, colours_are_wanted};
use self::log_format::LogFormat;
use self::metrics_server::MetricsServer;
use self::negotiation::PageContent;
pub use self::process_log::{LogOutput, ProcessLog};
use self::reload_signal::ReloadSignal;
use self::report::StdoutReport;
use crate::config::Config;
use crate::confinement::Opener;
use crate::reloader::ConfigSource;
use crate::target::Target;

/// Longest time that the process waits at its end for slow readers of its output.
const READER_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest time that the process waits at its end for the helper that opens files.
const HELPER_TIMEOUT: Duration = Duration::from_secs(1);

/// Command line of the daemon, for man pages and completions.
pub fn command() -> clap::Command {
    DaemonArguments::command()
}

/// Runs the daemon with the arguments of a process, its name first, until a signal ends it.
pub fn main_with_args(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = match DaemonArguments::try_parse_from(args) {
        Ok(arguments) => arguments,
        Err(error) => {
            // `--help` and `--version` write to standard output and exit with 0.
            let _ = error.print();
            return ExitCode::from(u8::from(error.use_stderr()) * 2);
        }
    };
    let format = arguments.log_format.resolve();
    // The helper is forked before there is a thread.
    let config = arguments.config();
    let confinement = match &config {
        Ok(config) if !arguments.check => Some(confine::prepare(config, config_source(&arguments))),
        _ => None,
    };
    // A separate thread writes to standard error, since writes may block.
    let notice = format.dropped_lines_notice();
    let log = LineWriter::to(std::io::stderr(), "feedrail-log", notice);
    let (log, report) = match (log, StdoutReport::start()) {
        (Ok(log), Ok(report)) => (log, report),
        (Err(error), _) | (_, Err(error)) => {
            // If nobody reads standard error, the exit status still reports the failure.
            let line = format.error_line(&format!("cannot start a thread: {error}"));
            let _ = std::io::stderr().write_all(line.as_bytes());
            return ExitCode::FAILURE;
        }
    };
    abort_on_panic(log.clone(), format);
    format.start(&arguments.log, log.clone(), std::io::stderr().is_terminal());
    let result = config.map_err(|error| vec![error.to_string()]).and_then(|config| {
        raise_descriptor_limit();
        match confinement.transpose().map_err(|error| vec![error.to_string()])? {
            None => {
                report.checked(&*check::check(&config)?);
                Ok(())
            }
            Some(confinement) => {
                serve(&config, &arguments, &report, confinement).map_err(|message| vec![message])
            }
        }
    });
    for message in result.as_ref().err().into_iter().flatten() {
        log.push(format.error_line(message).into_bytes());
    }
    report.flush(READER_TIMEOUT);
    log.flush(READER_TIMEOUT);
    Opener::end(HELPER_TIMEOUT);
    if result.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Installs a panic hook that aborts the process, since a target without one of its threads would
/// leave some hosts without responses; the service manager restarts it. The hook waits at most
/// [`READER_TIMEOUT`] until its message is written.
fn abort_on_panic(log: LineWriter, format: LogFormat) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("without a name");
        let trace = Backtrace::capture();
        let trace = match trace.status() {
            BacktraceStatus::Captured => format!("\n{trace}"),
            _ => String::new(),
        };
        log.push(format.error_line(&format!("thread {name} {panic}{trace}")).into_bytes());
        log.flush(READER_TIMEOUT);
        std::process::abort();
    }));
}

fn serve(
    config: &Config,
    arguments: &DaemonArguments,
    report: &StdoutReport,
    confinement: Confinement,
) -> Result<(), String> {
    // Signals are registered before the start, so that none is lost. The handlers of one signal run
    // in the order of registration: were this one later, a handler on another thread could wake
    // this thread, and then find the flag set by it.
    let exit_on_next_signal = exit_on_next_signal()?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP])
        .map_err(|error| format!("cannot take signals: {error}"))?;
    keep_machine(config);
    let metrics = config.metrics.map(MetricsServer::listen).transpose()?;
    let target = Target::start_with(config, config_source(arguments));
    let target = target.map_err(|error| error.to_string())?;
    confinement.seal().map_err(|error| error.to_string())?;
    report.listening(&target);
    report.ready(metrics.as_ref().and_then(|(server, _)| server.address().ok()));
    notify::ready();
    confine::do_deliberate_harm();
    let reload = ReloadSignal::start(target.reloader())
        .map_err(|error| format!("cannot start a thread for reloads: {error}"))?;
    let (server, stop) = metrics.unzip();
    std::thread::scope(|scope| {
        if let Some(server) = &server {
            if let Ok(address) = server.address() {
                tracing::info!(%address, "metrics");
            }
            let thread = std::thread::Builder::new().name("feedrail-metrics".into());
            let text = |content: PageContent| match content {
                PageContent::Metrics(format) => target.metrics(format, config.metrics_detail),
                PageContent::Status => target.status(),
            };
            let serve = move || server.run(text);
            thread
                .spawn_scoped(scope, serve)
                .map_err(|error| format!("cannot start a thread for metrics: {error}"))?;
        }
        let (_fed, over) = crossbeam::channel::bounded::<()>(0);
        if let Some(interval) = watchdog::interval() {
            let watch = target.turn_watch();
            let thread = std::thread::Builder::new().name("feedrail-dog".into());
            thread
                .spawn_scoped(scope, move || watchdog::run(watch, interval, &over))
                .map_err(|error| format!("cannot start a thread for the watchdog: {error}"))?;
        }
        obey_signals(&mut signals, &target, report, &reload);
        drop(stop);
        Ok::<_, String>(())
    })?;
    exit_on_next_signal.store(true, Ordering::Relaxed);
    notify::stopping();
    report.stats(&target);
    target.drain(arguments.drain_timeout());
    Ok(())
}

/// Returns how to read the configuration again; `None` without a configuration file.
fn config_source(arguments: &DaemonArguments) -> Option<ConfigSource> {
    let path = arguments.config_path()?.to_owned();
    let arguments = arguments.clone();
    Some(ConfigSource { path, read: Box::new(move || arguments.config()) })
}

/// Handles signals until SIGTERM or SIGINT.
fn obey_signals(
    signals: &mut Signals,
    target: &Target,
    report: &StdoutReport,
    reload: &ReloadSignal,
) {
    for signal in signals.forever() {
        match signal {
            SIGUSR1 => report.stats(target),
            SIGHUP => reload.raise(),
            _ => {
                tracing::info!(signal, "stopping");
                break;
            }
        }
    }
}

/// Stores a generated machine id in the state folder if the machine has none, so that derived names
/// and identifiers are the same after the next start.
fn keep_machine(config: &Config) {
    if let Err(error) = config.machine.keep(&config.state_dir) {
        tracing::warn!(
            state_dir = %config.state_dir.display(), %error,
            "this machine has no /etc/machine-id and a random one cannot be kept: NQN, serial number and UUIDs \
             that are not configured change at each start; give --machine-id or a state_dir that can be written"
        );
    }
}

/// Once the returned flag is set, SIGTERM or SIGINT ends the process immediately with status 1,
/// without waiting for commands.
fn exit_on_next_signal() -> Result<Arc<AtomicBool>, String> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))
            .map_err(|error| format!("cannot take signals: {error}"))?;
    }
    Ok(flag)
}

/// Raises the soft limit of open files to the hard limit, since each exported file needs one.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of descriptors stays as it is");
    }
}

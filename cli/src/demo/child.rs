//! The demo's target: this program again, in a second process.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use anyhow::{Context, Result, bail};
use core::time::Duration;
use nvme_proto::Nqn;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;
use splitmix64::SplitMix64;

use super::log::Log;
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::ProviderArg;
use crate::seed::fresh_seed;

/// RoCE v2's UDP port.
const ROCE_PORT: u16 = 4791;
const NVME_PORT: u16 = 4420;
/// How long a target may take to listen; it only opens a file and a few sockets.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long a target that has closed its sockets may take to be gone.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// The word by which this program runs the target daemon. It is no command of the command line, so
/// that no shell completes it.
const TARGET_PROCESS: &str = "target-process";

/// A target daemon to be run in this process.
#[derive(Debug)]
pub(crate) struct TargetProcess {
    /// The process to end with.
    parent: u32,
    /// Arguments that feedrail-target is run with.
    arguments: Vec<OsString>,
}

impl TargetProcess {
    /// The job for which the demo runs this program; none for a command of a user.
    pub(crate) fn of_command_line(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        words.nth(1).filter(|word| word == TARGET_PROCESS)?;
        let parent = words.next()?.to_str()?.parse().ok()?;
        Some(Self { parent, arguments: words.collect() })
    }

    pub(crate) fn run(self) -> ExitCode {
        // If the demo is killed it cannot clean up, so its target must notice by itself.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
        // It may be gone already, and then no signal comes.
        if parent_id() != self.parent {
            return ExitCode::FAILURE;
        }
        let arguments = [OsString::from("feedrail-target")].into_iter().chain(self.arguments);
        feedrail_target::daemon::main_with_args(arguments)
    }
}

/// A running target that serves one file; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct TargetChild {
    child: Child,
    log: Log,
    /// The line that it printed when it began to listen.
    pub(crate) listening: ListeningLine,
}

/// The daemon's `listening` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListeningLine {
    pub(crate) address: SocketAddr,
    pub(crate) nqn: Nqn,
    pub(crate) provider: String,
    pub(crate) reason: String,
}

impl ListeningLine {
    /// `None` for other lines; the daemon may say more than this.
    fn parse(line: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(line).ok()?;
        let text = |key: &str| Some(line.get(key)?.as_str()?.to_owned());
        (text("event")? == "listening").then_some(())?;
        Some(Self {
            address: text("address")?.parse().ok()?,
            nqn: text("nqn")?.parse().ok()?,
            provider: text("provider")?,
            reason: text("reason").unwrap_or_default(),
        })
    }
}

impl TargetChild {
    /// Starts a target for `file` on a free loopback address and waits until it listens.
    pub(crate) fn start(
        file: &Path,
        provider: ProviderArg,
        verbose: u8,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let address =
            SocketAddr::new(free_loopback_address(&mut SplitMix64::new(fresh_seed())), NVME_PORT);
        let mut child = spawn(file, address, provider, verbose)?;
        let (lines, mut log) = read_output(&mut child).inspect_err(|_| end(&mut child))?;
        match wait_for_listening(&mut child, &lines, interrupt) {
            Ok(listening) => {
                log.pass_on();
                Ok(Self { child, log, listening })
            }
            Err(error) => {
                end(&mut child);
                Err(if error.is::<Interrupted>() { error } else { explain(error, &mut log) })
            }
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// An error if the target is no longer there. A process that ends closes its sockets a little
    /// earlier, so that others may know before.
    pub(crate) fn check(&mut self) -> Result<()> {
        match wait_at_most(&mut self.child, END_TIMEOUT)? {
            None => Ok(()),
            Some(status) => Err(explain(ended(status), &mut self.log)),
        }
    }

    /// Asks the target to finish, as an operator would, and waits for it.
    pub(crate) fn stop(mut self) -> Result<()> {
        if let Some(pid) = pid(&self.child) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let status = wait_at_most(&mut self.child, Duration::from_secs(5))?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(explain(ended(status), &mut self.log)),
            None => bail!("the target process did not end within 5 s of SIGTERM"),
        }
    }
}

impl Drop for TargetChild {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn spawn(file: &Path, address: SocketAddr, provider: ProviderArg, verbose: u8) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut command = Command::new(program);
    command
        .args([TARGET_PROCESS, &std::process::id().to_string()])
        .args(["--listen", &address.to_string(), "--provider", provider.name()])
        .arg(file)
        // Ctrl-C is for the demo alone, which then ends its target in order.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if verbose == 0 && std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "warn");
    }
    command.spawn().context("cannot start the target process")
}

/// Starts threads that read what the child prints, and returns the lines of its stdout.
fn read_output(child: &mut Child) -> Result<(Receiver<String>, Log)> {
    let stdout = child.stdout.take().expect("stdout is piped");
    let (sender, lines) = mpsc::channel();
    let read = move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // After the first lines the receiver is gone; the pipe is still drained.
            let _ = sender.send(line);
        }
    };
    let started = thread::Builder::new().spawn(read).and_then(|_| {
        let stderr = child.stderr.take().expect("stderr is piped");
        Log::of(stderr)
    });
    Ok((lines, started.context("cannot start a thread that reads what the target prints")?))
}

/// An address in 127.0.0.0/8 whose RoCE port is free; the target reports it if another process
/// was faster.
fn free_loopback_address(random: &mut SplitMix64) -> IpAddr {
    let mut candidate = || {
        let mut octet = || 1 + random.below(254) as u8;
        Ipv4Addr::new(127, octet(), octet(), octet())
    };
    let free = |address: &Ipv4Addr| UdpSocket::bind((*address, ROCE_PORT)).is_ok();
    let first = candidate();
    [first].into_iter().chain((0..16).map(|_| candidate())).find(free).unwrap_or(first).into()
}

fn wait_for_listening(
    child: &mut Child,
    lines: &Receiver<String>,
    interrupt: &Interrupt,
) -> Result<ListeningLine> {
    let mut waited = Duration::ZERO;
    loop {
        interrupt.check()?;
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) => match ListeningLine::parse(&line) {
                Some(listening) => return Ok(listening),
                None => continue,
            },
            Err(RecvTimeoutError::Timeout) => waited += LOOK_EVERY,
            Err(RecvTimeoutError::Disconnected) => return Err(ended(child.wait()?)),
        }
        if waited >= START_TIMEOUT {
            bail!("the target process did not listen within {} s", START_TIMEOUT.as_secs());
        }
    }
}

fn ended(status: ExitStatus) -> anyhow::Error {
    anyhow::anyhow!("the target process ended ({status})")
}

/// Says in the target's words, where there are any, why it ended.
fn explain(error: anyhow::Error, log: &mut Log) -> anyhow::Error {
    match log.last_unseen() {
        Some(line) => anyhow::anyhow!("the target did not start: {line}"),
        None => error,
    }
}

/// How the child ended, or `None` if it still runs after `limit`.
fn wait_at_most(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    if let Some(status) = child.try_wait()? {
        return Ok(Some(status));
    }
    if let Some(pid) = pid(child) {
        let ended = pidfd_open(pid, PidfdFlags::empty())?;
        let _ = poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit.try_into()?));
    }
    Ok(child.try_wait()?)
}

fn pid(child: &Child) -> Option<Pid> {
    Pid::from_raw(child.id().cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listening_line_is_found_among_others() {
        let line = r#"{"event":"listening","address":"127.3.2.1:4420","provider":"soft","reason":"no RDMA device","nqn":"nqn.x","more":1}"#;
        let listening = ListeningLine::parse(line).unwrap();
        assert_eq!(listening.address, "127.3.2.1:4420".parse().unwrap());
        assert_eq!((listening.provider.as_str(), listening.nqn.as_str()), ("soft", "nqn.x"));
        for other in ["", "{}", "listening", r#"{"event":"stats"}"#, r#"{"event":"listening"}"#] {
            assert_eq!(ListeningLine::parse(other), None, "{other}");
        }
    }

    #[test]
    fn addresses_are_loopback_and_not_the_usual_one() {
        let mut random = SplitMix64::new(1);
        for _ in 0..100 {
            let IpAddr::V4(address) = free_loopback_address(&mut random) else { unreachable!() };
            assert!(address.is_loopback() && address != Ipv4Addr::LOCALHOST);
        }
    }
}

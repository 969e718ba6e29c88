//! Target daemon as a child process: this program again, with a hidden first argument.

mod announcement;
mod log;
mod process;

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use anyhow::{Context, Result, bail};
use core::time::Duration;
use feedrail_dataset::url::DEFAULT_PORT;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use splitmix64::SplitMix64;

pub(crate) use self::announcement::{Announcement, ListeningLine};
pub(crate) use self::log::Log;
use self::process::TARGET_PROCESS;
pub(crate) use self::process::{TargetProcess, run_daemon};
use crate::interrupt::{Interrupt, Interrupted};
use crate::seed::fresh_seed;

/// UDP port of RoCE v2.
const ROCE_PORT: u16 = 4791;
/// Time limit until a target listens; it only opens files and a few sockets.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time limit until a target has stopped; it gives commands in flight 10 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit until a target that has closed its sockets has exited.
const END_TIMEOUT: Duration = Duration::from_millis(200);

/// Running target daemon. Dropping it ends the process.
#[derive(Debug)]
pub(crate) struct TargetChild {
    child: Child,
    log: Log,
    announcement: Announcement,
}

impl TargetChild {
    /// Starts a target with these arguments of feedrail-target, and waits until it listens at all
    /// of its addresses.
    pub(crate) fn start(
        arguments: impl IntoIterator<Item = OsString>,
        verbose: u8,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let mut child = spawn(arguments, verbose)?;
        let (lines, mut log) = read_output(&mut child).inspect_err(|_| end(&mut child))?;
        match wait_until_ready(&mut child, &lines, interrupt) {
            Ok(announcement) => {
                log.pass_on();
                Ok(Self { child, log, announcement })
            }
            Err(error) => {
                end(&mut child);
                Err(if error.is::<Interrupted>() { error } else { explain(error, &mut log) })
            }
        }
    }

    /// Addresses that the target listens at.
    pub(crate) fn listening(&self) -> &[ListeningLine] {
        &self.announcement.listening
    }

    /// Address of the target's HTTP server for metrics.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.announcement.metrics
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error if the target has exited. It waits a little, since an exiting process
    /// closes its sockets before it can be reaped.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.check_for(END_TIMEOUT)
    }

    /// Waits for a signal to this process.
    ///
    /// # Errors
    /// The target exited before a signal; the error contains the last line of its log.
    pub(crate) fn wait_for(&mut self, interrupt: &Interrupt) -> Result<()> {
        while interrupt.check().is_ok() {
            self.check_for(LOOK_EVERY)?;
        }
        Ok(())
    }

    fn check_for(&mut self, time: Duration) -> Result<()> {
        match wait_at_most(&mut self.child, time)? {
            None => Ok(()),
            Some(status) => Err(explain(ended(status), &mut self.log)),
        }
    }

    /// Sends SIGTERM to the target and waits until it has exited.
    pub(crate) fn stop(mut self) -> Result<()> {
        if let Some(pid) = pid(&self.child) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let status = wait_at_most(&mut self.child, STOP_TIMEOUT)?;
        match status {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(explain(ended(status), &mut self.log)),
            None => bail!(
                "the target process did not end within {} s of SIGTERM",
                STOP_TIMEOUT.as_secs()
            ),
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

fn spawn(arguments: impl IntoIterator<Item = OsString>, verbose: u8) -> Result<Child> {
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut command = Command::new(program);
    command
        .args([TARGET_PROCESS, &std::process::id().to_string()])
        .args(arguments)
        // A process group of its own: Ctrl-C is sent only to this process, which then stops its
        // target.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    if verbose == 0 && std::env::var_os("RUST_LOG").is_none() {
        command.env("RUST_LOG", "warn");
    }
    command.spawn().context("cannot start the target process")
}

/// Starts threads that read the child's output. Returns the lines of its stdout.
fn read_output(child: &mut Child) -> Result<(Receiver<String>, Log)> {
    let stdout = child.stdout.take().expect("stdout is piped");
    let (sender, lines) = mpsc::channel();
    let read = move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // After the start the receiver is dropped, but the pipe must still be drained.
            let _ = sender.send(line);
        }
    };
    let started = thread::Builder::new().spawn(read).and_then(|_| {
        let stderr = child.stderr.take().expect("stderr is piped");
        Log::of(stderr)
    });
    Ok((lines, started.context("cannot start a thread that reads what the target prints")?))
}

/// Returns an address in 127.0.0.0/8 whose RoCE port is free. If another process takes the port
/// first, the target reports that.
pub(crate) fn free_loopback_address() -> SocketAddr {
    SocketAddr::new(choose_free(&mut SplitMix64::new(fresh_seed())), DEFAULT_PORT)
}

fn choose_free(random: &mut SplitMix64) -> IpAddr {
    let mut candidate = || {
        let mut octet = || 1 + random.below(254) as u8;
        Ipv4Addr::new(127, octet(), octet(), octet())
    };
    let free = |address: &Ipv4Addr| UdpSocket::bind((*address, ROCE_PORT)).is_ok();
    let first = candidate();
    [first].into_iter().chain((0..16).map(|_| candidate())).find(free).unwrap_or(first).into()
}

fn wait_until_ready(
    child: &mut Child,
    lines: &Receiver<String>,
    interrupt: &Interrupt,
) -> Result<Announcement> {
    let mut announcement = Announcement::default();
    let mut waited = Duration::ZERO;
    loop {
        interrupt.check()?;
        match lines.recv_timeout(LOOK_EVERY) {
            Ok(line) if announcement.add(&line) => return Ok(announcement),
            Ok(_) => continue,
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

/// Replaces the error with the last line of the target's log, if there is one.
fn explain(error: anyhow::Error, log: &mut Log) -> anyhow::Error {
    match log.last_unseen() {
        Some(line) => anyhow::anyhow!("the target did not start: {line}"),
        None => error,
    }
}

/// Waits for the child's exit. Returns `None` if it still runs after `limit`.
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
    fn addresses_are_loopback_and_not_the_usual_one() {
        let mut random = SplitMix64::new(1);
        for _ in 0..100 {
            let IpAddr::V4(address) = choose_free(&mut random) else { unreachable!() };
            assert!(address.is_loopback() && address != Ipv4Addr::LOCALHOST);
        }
    }
}

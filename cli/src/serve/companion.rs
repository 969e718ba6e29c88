//! A process that a target ends with.

use std::thread;

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use signal_hook::consts::SIGTERM;
use signal_hook::low_level::raise;

/// Sends SIGTERM to this process when the one with a number ends, in whatever way.
///
/// # Errors
/// There is no such process.
pub(super) fn end_with(pid: Pid) -> Result<()> {
    let process = pidfd_open(pid, PidfdFlags::empty())
        .with_context(|| format!("process {}", pid.as_raw_nonzero()))?;
    let wait = move || {
        let ended = retry_on_intr(|| poll(&mut [PollFd::new(&process, PollFlags::IN)], None));
        if ended.is_ok() {
            // `kill` is no call of a confined target.
            let _ = raise(SIGTERM);
        }
    };
    thread::Builder::new()
        .name("feedrail-pid".into())
        .spawn(wait)
        .context("cannot start a thread that waits for a process")?;
    Ok(())
}

/// The number of a process, as `--pid` takes it.
pub(super) fn parse_pid(text: &str) -> Result<Pid, &'static str> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.and_then(Pid::from_raw).ok_or("the number of a process is above 0")
}

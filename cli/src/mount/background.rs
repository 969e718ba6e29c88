//! The process in the background that serves a mount: this program once more, which says on its
//! stdout when the file system can be read.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

/// Set in the environment of the process in the background.
const VARIABLE: &str = "FEEDRAIL_MOUNT_IN_BACKGROUND";
const READY: &str = "ready";

/// The process in the background, which is this one.
#[derive(Debug)]
pub(super) struct Background(());

impl Background {
    /// `None` in the process that a user has started.
    pub(super) fn of_this_process() -> Option<Self> {
        std::env::var_os(VARIABLE).map(|_| Self(()))
    }

    /// Ends the user's command well, and parts from its terminal.
    pub(super) fn announce(self) -> Result<()> {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{READY}").and_then(|()| stdout.flush()).context("the command is gone")?;
        // Nobody waits for this process: it leads no group, and is of no session but its own.
        rustix::process::setsid()?;
        // What it keeps open would keep file systems busy.
        std::env::set_current_dir("/")?;
        let nothing = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&nothing)?;
        rustix::stdio::dup2_stdout(&nothing)?;
        rustix::stdio::dup2_stderr(&nothing)?;
        Ok(())
    }
}

/// Starts the process in the background, and ends as it says: its errors are on our stderr.
pub(super) fn start() -> Result<()> {
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut child = Command::new(program)
        .args(std::env::args_os().skip(1))
        .env(VARIABLE, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the process in the background")?;
    let stdout = child.stdout.take().context("its stdout is piped")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    if line.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait()?;
    match status.code() {
        // It has said why.
        Some(code) if code != 0 => std::process::exit(code),
        _ => {
            bail!("the process in the background ended before the file system was there: {status}")
        }
    }
}

//! Programs that run to their end.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::binary;
use super::seccomp::refuse_io_uring;

/// A program that runs longer than this hangs.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// How a program ended, and its output.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Exit status; `None` if the process hung and was killed.
    pub status: Option<ExitStatus>,
    /// Standard output, as bytes.
    pub stdout: Vec<u8>,
    /// Standard error, as text.
    pub stderr: String,
}

impl Outcome {
    /// The standard output of a program that succeeded.
    ///
    /// # Panics
    /// If it did not succeed.
    #[track_caller]
    pub fn success(self) -> Vec<u8> {
        assert!(self.status.is_some_and(|status| status.success()), "{self}");
        self.stdout
    }

    /// The one line on standard error of a program that failed by itself.
    ///
    /// # Panics
    /// If it succeeded, was killed, said nothing or more than one line.
    #[track_caller]
    pub fn failure(self) -> String {
        let code = self.status.and_then(|status| status.code());
        assert!(code.is_some_and(|code| code != 0), "expected an error\n{self}");
        assert!(!self.stderr.contains("panicked"), "{self}");
        assert_eq!(self.stderr.lines().count(), 1, "expected one line\n{self}");
        self.stderr
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Some(status) => writeln!(f, "{status}")?,
            None => writeln!(f, "hung, killed")?,
        }
        let shown = &self.stdout[..self.stdout.len().min(2000)];
        writeln!(f, "stdout ({} bytes): {}", self.stdout.len(), String::from_utf8_lossy(shown))?;
        writeln!(f, "stderr: {}", self.stderr)
    }
}

/// A program to run, with a bounded time.
#[derive(Debug)]
pub struct Program {
    command: Command,
    input: Vec<u8>,
    limit: Duration,
}

/// The `feedrail` command line.
pub fn feedrail<I, A>(arguments: I) -> Program
where
    I: IntoIterator<Item = A>,
    A: AsRef<OsStr>,
{
    Program::new(binary("feedrail")).args(arguments)
}

impl Program {
    /// A program by its path or name.
    pub fn new(program: impl Into<OsString>) -> Self {
        let mut command = Command::new(program.into());
        command.env_remove("RUST_LOG");
        Self { command, input: Vec::new(), limit: HANGS_AFTER }
    }

    /// Adds arguments behind those that are there.
    #[must_use]
    pub fn args<I, A>(mut self, arguments: I) -> Self
    where
        I: IntoIterator<Item = A>,
        A: AsRef<OsStr>,
    {
        self.command.args(arguments);
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Makes the kernel refuse io_uring to the process.
    #[must_use]
    pub fn without_io_uring(mut self) -> Self {
        refuse_io_uring(&mut self.command);
        self
    }

    /// The bytes that it reads from standard input.
    #[must_use]
    pub fn input(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.input = input.into();
        self
    }

    /// Sets the time after which the process counts as hung.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Starts it without waiting.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(mut self) -> Running {
        let piped =
            self.command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap_or_else(|error| panic!("{:?}: {error}", self.command));
        let mut stdin = child.stdin.take().expect("stdin is piped");
        let input = self.input;
        // A program that does not read its input closes the pipe; that is not the test's concern.
        thread::spawn(move || _ = stdin.write_all(&input));
        let stdout = collect(child.stdout.take().expect("stdout is piped"));
        let stderr = collect(child.stderr.take().expect("stderr is piped"));
        Running { child, stdout, stderr, limit: self.limit }
    }

    /// Runs it to its end.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn run(self) -> Outcome {
        self.start().wait()
    }
}

/// A program that was started.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
    limit: Duration,
}

impl Running {
    /// Process id, for signals and `/proc`.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    ///
    /// # Panics
    /// If the system refuses to tell.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("our own child can be waited for").is_some()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("our own child can be signalled");
    }

    /// Ends it without a warning.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn kill(mut self) {
        self.child.kill().expect("our own child can be killed");
        self.child.wait().expect("our own child can be waited for");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If the system refuses to tell.
    pub fn wait(mut self) -> Outcome {
        let status = wait_at_most(&mut self.child, self.limit);
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let stdout = self.stdout.join().expect("the reading thread does not panic");
        let stderr = self.stderr.join().expect("the reading thread does not panic");
        Outcome { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
    }
}

fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        bytes
    })
}

/// How a process ended, or `None` if it still runs after `limit`.
///
/// # Panics
/// If the system refuses to tell.
pub fn wait_at_most(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    if let Some(status) = child.try_wait().expect("our own child can be waited for") {
        return Some(status);
    }
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process id is not 0");
    let descriptor =
        pidfd_open(pid, PidfdFlags::empty()).expect("a child has a process descriptor");
    let timeout = Timespec::try_from(limit).expect("limits are short");
    let _ = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&timeout));
    child.try_wait().expect("our own child can be waited for")
}

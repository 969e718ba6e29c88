//! A running process of `feedrail-target`.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, PipeReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::pipe::full_pipe;
use super::seccomp::{hide_io_uring, refuse_io_uring, refuse_steering};
use super::{Vitals, binary, eventually, loopback_address, wait_at_most};

/// Limit for anything that the daemon does without waiting for something else.
const PROMPTLY: Duration = Duration::from_secs(30);

/// How to start a daemon.
#[derive(Clone, Debug, Default)]
pub struct DaemonOptions {
    /// A program and its arguments that starts the daemon, for example `prlimit --memlock=65536`.
    pub wrapper: Vec<OsString>,
    /// Arguments of the daemon besides `--listen`.
    pub arguments: Vec<OsString>,
    /// Variables in its environment.
    pub environment: Vec<(String, String)>,
    /// The daemon's binary, if not the one of this build.
    pub program: Option<PathBuf>,
    /// Whether the kernel refuses io_uring to it.
    pub without_io_uring: bool,
    /// Whether the kernel tells it that it knows no io_uring, though it does.
    pub hidden_io_uring: bool,
    /// Whether the kernel refuses it a program that steers packets to the sockets of its cores.
    pub without_steering: bool,
    /// Whether its log has no reader, so that it can write nothing more to it.
    pub unread_log: bool,
    /// Where to listen; a random loopback address if `None`.
    pub address: Option<SocketAddr>,
}

/// A daemon that ended before it listened.
#[derive(Debug)]
pub struct Ended {
    /// Exit status, or the signal that ended the process.
    pub status: ExitStatus,
    /// All that it wrote to standard error.
    pub stderr: String,
}

/// A daemon that listens. It is killed when this is dropped; if the test has failed, its log is
/// printed.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    lines: Mutex<Receiver<Value>>,
    log: Arc<Mutex<String>>,
    address: SocketAddr,
    nqn: String,
    listening: Value,
    not_listening: Value,
    /// The log without a reader.
    _unread: Option<PipeReader>,
}

impl DaemonOptions {
    /// The quick form: these files, read-only.
    pub fn files<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Self {
        let arguments =
            files.into_iter().map(|file| file.as_ref().as_os_str().to_owned()).collect();
        Self { arguments, ..Self::default() }
    }

    /// Adds a command-line argument as it is.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds a wrapper's program or argument.
    #[must_use]
    pub fn wrapped_by<A: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = A>) -> Self {
        self.wrapper.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the address to listen on.
    #[must_use]
    pub fn at(mut self, address: SocketAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// Starts a daemon that must come up.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn start(self) -> Daemon {
        match self.try_start() {
            Ok(daemon) => daemon,
            Err(ended) => {
                panic!("the daemon ended before it listened: {}\n{}", ended.status, ended.stderr)
            }
        }
    }

    /// Starts a daemon and waits until it listens.
    ///
    /// # Errors
    /// How it ended, if it ended before it listened.
    ///
    /// # Panics
    /// If it neither listens nor ends.
    pub fn try_start(self) -> Result<Daemon, Ended> {
        let address = self.address.unwrap_or_else(|| SocketAddr::new(loopback_address(), 4420));
        let (mut child, unread) = self.spawn(address);
        let lines = json_lines(&mut child);
        let (log, logger) = keep_log(&mut child);
        let mut not_listening = Value::Null;
        let listening = loop {
            match lines.recv_timeout(PROMPTLY) {
                Ok(line) if line["event"] == "listening" => break line,
                Ok(line) => not_listening = line,
                Err(RecvTimeoutError::Disconnected) => return Err(ended(child, &log, logger)),
                Err(RecvTimeoutError::Timeout) => {
                    let _ = child.kill();
                    panic!("the daemon neither listens nor ends: {}", read(&log));
                }
            }
        };
        let address = listening["address"].as_str().and_then(|text| text.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in {listening}"));
        let nqn = listening["nqn"].as_str().unwrap_or_default().to_owned();
        let lines = Mutex::new(lines);
        Ok(Daemon { child, lines, log, address, nqn, listening, not_listening, _unread: unread })
    }

    fn spawn(&self, address: SocketAddr) -> (Child, Option<PipeReader>) {
        let mut words: Vec<OsString> = self.wrapper.clone();
        let program = self.program.clone().unwrap_or_else(|| binary("feedrail-target"));
        words.push(program.into_os_string());
        let configured = self.arguments.iter().any(|argument| argument == "--config");
        if !configured {
            words.extend(["--listen".into(), address.to_string().into()]);
        }
        words.extend(self.arguments.iter().cloned());
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let unread = self.unread_log.then(|| {
            let (reader, writer) = full_pipe();
            command.stderr(writer);
            reader
        });
        for variable in ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"] {
            command.env_remove(variable);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if self.without_io_uring {
            refuse_io_uring(&mut command);
        }
        if self.hidden_io_uring {
            hide_io_uring(&mut command);
        }
        if self.without_steering {
            refuse_steering(&mut command);
        }
        let child = command.spawn().unwrap_or_else(|error| panic!("{words:?}: {error}"));
        (child, unread)
    }
}

impl Daemon {
    /// A daemon with one read-only namespace per file.
    #[track_caller]
    pub fn serving<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Self {
        DaemonOptions::files(files).start()
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The name of its (first) subsystem.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The line with which it said that it listens.
    pub fn listening(&self) -> &Value {
        &self.listening
    }

    /// The (last) line with which it said that it cannot listen on an address, if there is one.
    pub fn not_listening(&self) -> &Value {
        &self.not_listening
    }

    /// Options of `feedrail` that name this daemon and its subsystem.
    pub fn options(&self) -> Vec<String> {
        let mut options = self.address_options();
        options.extend(["-n".to_owned(), self.nqn.clone()]);
        options
    }

    /// Options of `feedrail` that name this daemon.
    pub fn address_options(&self) -> Vec<String> {
        ["-a", &self.address.ip().to_string(), "-s", &self.address.port().to_string()]
            .map(str::to_owned)
            .into()
    }

    /// The resources that it uses now.
    pub fn vitals(&self) -> Vitals {
        Vitals::of(self.child.id())
    }

    /// Process id, for signals and `/proc`.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The lines that it logged until now.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    /// Waits until it logged a part of a line: a thread of its own writes the log, after the event.
    #[track_caller]
    pub fn wait_for_log(&self, part: &str) {
        eventually(&format!("{part:?} is logged"), || self.log().contains(part));
    }

    /// Counters of the daemon, asked for with SIGUSR1.
    ///
    /// # Panics
    /// If it does not tell them.
    pub fn stats(&self) -> Value {
        self.signal(Signal::USR1);
        self.next_stats().unwrap_or_else(|| panic!("no counters on SIGUSR1"))
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("our own child can be signalled");
    }

    /// Ends it as an operator would, and gives its exit status and last counters.
    ///
    /// # Panics
    /// If it does not end.
    pub fn terminate(mut self) -> (ExitStatus, Option<Value>) {
        self.signal(Signal::TERM);
        let status = wait_at_most(&mut self.child, PROMPTLY);
        (status.expect("the daemon ends on SIGTERM"), self.next_stats())
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// If it does not end.
    pub fn wait(mut self) -> ExitStatus {
        wait_at_most(&mut self.child, PROMPTLY).expect("the daemon ends")
    }

    /// Ends it as a power failure would.
    pub fn kill(mut self) {
        self.crash();
    }

    /// Ends it as [`Daemon::kill`] does; only its address, its name and its log are left.
    pub fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn next_stats(&self) -> Option<Value> {
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let line = lines.recv_timeout(PROMPTLY).ok()?;
            if line["event"] == "stats" {
                return Some(line);
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- log of the daemon at {}:\n{}", self.address, self.log());
        }
    }
}

fn ended(mut child: Child, log: &Mutex<String>, logger: JoinHandle<()>) -> Ended {
    let status = wait_at_most(&mut child, PROMPTLY).expect("a daemon that closed its output ends");
    logger.join().expect("the reading thread does not panic");
    Ended { status, stderr: read(log) }
}

fn read(log: &Mutex<String>) -> String {
    log.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// The daemon's standard output, line by line; a line that is no JSON is a broken promise.
fn json_lines(child: &mut Child) -> Receiver<Value> {
    let stdout = child.stdout.take().expect("stdout is piped");
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let line = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
            let _ = sender.send(line);
        }
    });
    lines
}

fn keep_log(child: &mut Child) -> (Arc<Mutex<String>>, JoinHandle<()>) {
    let stderr = child.stderr.take();
    let log = Arc::new(Mutex::new(String::new()));
    let kept = Arc::clone(&log);
    let logger = thread::spawn(move || {
        let Some(stderr) = stderr else { return };
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push_str(&line);
            kept.push('\n');
        }
    });
    (log, logger)
}

/// A configuration file in a folder.
pub fn write_configuration(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("feedrail.toml");
    std::fs::write(&path, text).expect("a temporary folder is writable");
    path
}

//! Log that the target writes to standard error.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader};
use std::process::ChildStderr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::output;

/// Number of lines kept to explain a failure.
const LINES: usize = 20;

/// The target's log. Lines are kept and not shown until [`Log::pass_on`]: if the target fails to
/// start, the last one is the reason.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Arc<Mutex<LogLines>>,
    reader: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct LogLines {
    last: VecDeque<String>,
    pass_on: bool,
}

impl Log {
    /// Starts a thread that reads the log. Fails if the system refuses the thread.
    pub(crate) fn of(stderr: ChildStderr) -> io::Result<Self> {
        let lines = Arc::new(Mutex::new(LogLines::default()));
        let kept = Arc::clone(&lines);
        let reader = thread::Builder::new().spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lock(&kept).add(line);
            }
        })?;
        Ok(Self { lines, reader: Some(reader) })
    }

    /// Prints the lines so far, and from now on each line when it arrives.
    pub(crate) fn pass_on(&self) {
        let mut lines = lock(&self.lines);
        lines.pass_on = true;
        lines.last.iter().for_each(|line| show(line));
    }

    /// Returns the last line of a target that has ended, if it was not printed yet.
    pub(crate) fn last_unseen(&mut self) -> Option<String> {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reading thread does not panic");
        }
        let mut lines = lock(&self.lines);
        if lines.pass_on { None } else { lines.last.pop_back() }
    }
}

impl LogLines {
    fn add(&mut self, line: String) {
        if self.pass_on {
            show(&line);
        }
        if self.last.len() == LINES {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }
}

fn show(line: &str) {
    output::note(format_args!("target: {line}"));
}

fn lock(lines: &Mutex<LogLines>) -> MutexGuard<'_, LogLines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

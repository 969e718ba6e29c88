//! Processes of all ranks, which begin each job together.

use core::time::Duration;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail};
use feedrail_checkpoint_store::WrittenEntry;

use super::figures::RankTimes;
use super::messages::{RankAnswer, RankJob, RankSetup};
use super::rank_process::RANK_PROCESS;
use crate::clock::now;
use crate::interrupt::Interrupt;
use crate::target_child::Log;

/// Time after which Ctrl-C and the lease are looked at while ranks work.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The processes of all ranks. Dropping it kills them.
#[derive(Debug)]
pub(super) struct RankGroup {
    ranks: Vec<RankChild>,
    /// Lines of all ranks, with the rank's number; `None` when a rank has closed its stdout.
    lines: Receiver<(usize, Option<String>)>,
    /// Longest time in which a rank connected.
    connect_seconds: f64,
    /// When the last job began.
    began: Instant,
}

#[derive(Debug)]
struct RankChild {
    child: Child,
    stdin: ChildStdin,
    log: Log,
}

/// Answers of all ranks to a job.
#[derive(Debug)]
pub(super) struct RankResults {
    pub(super) times: RankTimes,
    /// Checksums of saved entries, by rank.
    pub(super) written: Vec<Option<WrittenEntry>>,
    /// Bytes that the ranks received from targets.
    pub(super) received_bytes: u64,
}

/// Returns the command that runs this program as a rank.
pub(super) fn own_program() -> Result<Command> {
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut command = Command::new(program);
    command.arg(RANK_PROCESS).arg(std::process::id().to_string());
    command.args(std::env::args_os().skip(1));
    Ok(command)
}

impl RankGroup {
    /// Starts a process for each setup, and waits until all ranks are ready.
    pub(super) fn start(
        setups: &[RankSetup],
        program: impl Fn() -> Result<Command>,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (sender, lines) = mpsc::channel();
        let mut group = Self { ranks: Vec::new(), lines, connect_seconds: 0.0, began: now() };
        for (rank, setup) in setups.iter().enumerate() {
            let mut child = RankChild::spawn(program()?, rank, &sender)?;
            let sent = child.send(&serde_json::to_string(setup)?);
            group.ranks.push(child);
            // One that ended says why, when its answer is awaited.
            let _ = sent;
        }
        drop(sender);
        let answers = group.answers(interrupt, &mut || Ok(()))?;
        let seconds = answers.iter().map(|answer| match answer {
            RankAnswer::Ready { connect_seconds } => *connect_seconds,
            _ => 0.0,
        });
        group.connect_seconds = seconds.fold(0.0, f64::max);
        Ok(group)
    }

    pub(super) fn connect_seconds(&self) -> f64 {
        self.connect_seconds
    }

    pub(super) fn begin(&mut self, job: impl Fn(usize) -> RankJob) -> Result<()> {
        let jobs = (0..self.ranks.len()).map(|rank| Ok(serde_json::to_string(&job(rank))?));
        let jobs = jobs.collect::<Result<Vec<_>>>()?;
        self.began = now();
        for (rank, job) in self.ranks.iter_mut().zip(jobs) {
            // One that ended says why, when its answer is awaited.
            let _ = rank.send(&job);
        }
        Ok(())
    }

    /// Waits for the results of all ranks, and calls `while_waiting` several times in a second.
    ///
    /// # Errors
    /// A rank failed or ended; the error of `while_waiting`; a signal. Ranks may still be working
    /// then: [`RankGroup::end`] ends them.
    pub(super) fn results(
        &mut self,
        interrupt: &Interrupt,
        while_waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<RankResults> {
        let answers = self.answers(interrupt, while_waiting)?;
        let whole = self.began.elapsed().as_secs_f64();
        let (mut seconds_of, mut written_of, mut received) = (Vec::new(), Vec::new(), 0);
        for (rank, answer) in answers.into_iter().enumerate() {
            let RankAnswer::Done { seconds, written, received_bytes } = answer else {
                bail!("rank {rank} gave no result");
            };
            seconds_of.push(seconds);
            written_of.push(written);
            received += received_bytes;
        }
        let times = RankTimes { whole, ranks: seconds_of };
        Ok(RankResults { times, written: written_of, received_bytes: received })
    }

    /// Makes all ranks compare what they loaded.
    ///
    /// # Errors
    /// A rank read a wrong byte, failed or ended; a signal.
    pub(super) fn compare(&mut self, interrupt: &Interrupt) -> Result<()> {
        self.begin(|_| RankJob::Compare)?;
        for (rank, answer) in self.answers(interrupt, &mut || Ok(()))?.into_iter().enumerate() {
            let RankAnswer::Compared { wrong_byte } = answer else {
                bail!("rank {rank} compared nothing");
            };
            if let Some(offset) = wrong_byte {
                bail!("rank {rank} read other bytes than were saved, from byte {offset} on");
            }
        }
        Ok(())
    }

    /// Waits for one answer of each rank.
    fn answers(
        &mut self,
        interrupt: &Interrupt,
        while_waiting: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<RankAnswer>> {
        let mut answers: Vec<Option<RankAnswer>> = self.ranks.iter().map(|_| None).collect();
        while answers.iter().any(Option::is_none) {
            interrupt.check()?;
            while_waiting()?;
            let (rank, line) = match self.lines.recv_timeout(LOOK_EVERY) {
                Ok(found) => found,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => bail!("all ranks have ended"),
            };
            let Some(line) = line else { return Err(self.ranks[rank].ended(rank)) };
            match serde_json::from_str(&line) {
                Ok(RankAnswer::Failed { error }) => bail!("rank {rank}: {error}"),
                Ok(answer) => answers[rank] = Some(answer),
                Err(_) => bail!("rank {rank} printed {line:?}"),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Kills all ranks, and waits until they have ended.
    pub(super) fn end(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
        }
        for rank in &mut self.ranks {
            let _ = rank.child.wait();
        }
    }
}

impl Drop for RankGroup {
    fn drop(&mut self) {
        self.end();
    }
}

impl RankChild {
    fn spawn(
        mut command: Command,
        rank: usize,
        sender: &Sender<(usize, Option<String>)>,
    ) -> Result<Self> {
        // A process group of its own: Ctrl-C is sent only to this process, which then ends its
        // ranks.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_owned();
        let about = || format!("cannot start {} as rank {rank}", program.display());
        let mut child = command.spawn().with_context(about)?;
        let stdin = child.stdin.take().expect("stdin is piped");
        let stdout = child.stdout.take().expect("stdout is piped");
        let log = Log::of(child.stderr.take().expect("stderr is piped"));
        let started = pass_on(stdout, rank, sender.clone()).and(log);
        match started {
            Ok(log) => Ok(Self { child, stdin, log }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(anyhow!(error).context(about()))
            }
        }
    }

    fn send(&mut self, line: &str) -> io::Result<()> {
        self.stdin.write_all(line.as_bytes())?;
        self.stdin.write_all(b"\n")?;
        self.stdin.flush()
    }

    /// Returns the error of a rank that has closed its stdout.
    fn ended(&mut self, rank: usize) -> anyhow::Error {
        // One that closed stdout and runs on does not answer either.
        let _ = self.child.kill();
        let status = match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        match self.log.last_unseen() {
            Some(line) => anyhow!("rank {rank} ended ({status}): {line}"),
            None => anyhow!("rank {rank} ended ({status})"),
        }
    }
}

/// Starts a thread that sends the lines of a rank.
fn pass_on(
    stdout: ChildStdout,
    rank: usize,
    sender: Sender<(usize, Option<String>)>,
) -> io::Result<()> {
    let read = move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // Without a receiver the pipe must still be drained.
            let _ = sender.send((rank, Some(line)));
        }
        let _ = sender.send((rank, None));
    };
    thread::Builder::new().spawn(read).map(drop)
}

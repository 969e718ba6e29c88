//! Trace of I/O commands with the times of their stages, taken on an operator's request.
//!
//! Without a trace, a core reads one flag in each turn.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use crossbeam::queue::ArrayQueue;
use nvme_proto::{Cid, Cntlid, Qid};
use rdma::Time;

use super::command::IoWork;
use super::command_times::{CommandStages, CommandTimes};
use crate::driver::clock::Clock;

/// Maximum number of commands in a trace. The first trace allocates 8 MiB for them.
pub(crate) const MAX_TRACED: usize = 1 << 16;
/// Interval at which a trace is checked for its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Record of an I/O command that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedCommand {
    pub(crate) cntlid: Cntlid,
    pub(crate) qid: Qid,
    pub(crate) cid: Cid,
    pub(crate) work: IoWork,
    /// Time at which its capsule arrived.
    pub(crate) arrived: Time,
    pub(crate) stages: CommandStages,
    /// Whether its status was Success.
    pub(crate) succeeded: bool,
}

impl TracedCommand {
    /// Creates the record of a command that ends now; `succeeded` if its status is Success.
    pub(crate) fn new(
        (cntlid, qid, cid): (Cntlid, Qid, Cid),
        work: &IoWork,
        times: &CommandTimes,
        now: Time,
        succeeded: bool,
    ) -> Self {
        let (work, stages) = (*work, times.stages(now));
        Self { cntlid, qid, cid, work, arrived: times.arrived, stages, succeeded }
    }
}

/// Commands that a trace recorded.
#[derive(Debug)]
pub(crate) struct TraceRecord {
    /// Commands in the order in which they ended on each core.
    pub(crate) commands: Vec<TracedCommand>,
    /// Number of commands beyond the limit, which were not recorded.
    pub(crate) dropped: u64,
    /// Unix time of [`Time::ZERO`], in nanoseconds.
    pub(crate) origin_unix_nanos: u64,
}

/// Reason that no trace was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TraceError {
    #[error("another trace is being taken")]
    Busy,
    #[error("the target does not run")]
    NoClock,
}

/// Recorder of I/O commands; it records only while `is_active`.
#[derive(Debug, Default)]
pub(crate) struct CommandTrace {
    is_active: AtomicBool,
    /// Maximum number of commands of the running trace.
    limit: AtomicUsize,
    dropped: AtomicU64,
    commands: OnceLock<ArrayQueue<TracedCommand>>,
    /// Clock of the cores; unset until they start.
    clock: OnceLock<Clock>,
    /// Locked while a trace runs.
    taking: Mutex<()>,
}

impl CommandTrace {
    /// Sets the clock that the cores use, when they are started.
    pub(crate) fn set_clock(&self, clock: Clock) {
        // Cannot fail: a target sets it once, when it starts its cores.
        let _ = self.clock.set(clock);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Records a command, or counts it as dropped if the limit is reached.
    pub(crate) fn add(&self, command: TracedCommand) {
        let Some(commands) = self.commands.get() else { return };
        let has_room = commands.len() < self.limit.load(Ordering::Relaxed);
        if !has_room || commands.push(command).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Traces commands that end within `time`, at most `limit` and [`MAX_TRACED`] of them. Blocks
    /// until the time has passed, the limit is reached, or `is_over` returns true.
    ///
    /// # Errors
    /// [`TraceError::Busy`] if another trace is running, [`TraceError::NoClock`] if no core is.
    pub(crate) fn take(
        &self,
        time: Duration,
        limit: usize,
        is_over: impl Fn() -> bool,
    ) -> Result<TraceRecord, TraceError> {
        let Ok(_taking) = self.taking.try_lock() else { return Err(TraceError::Busy) };
        let clock = self.clock.get().ok_or(TraceError::NoClock)?;
        let commands = self.commands.get_or_init(|| ArrayQueue::new(MAX_TRACED));
        // Cores may have added commands after the end of the previous trace.
        while commands.pop().is_some() {}
        self.dropped.store(0, Ordering::Relaxed);
        self.limit.store(limit, Ordering::Relaxed);
        self.is_active.store(true, Ordering::Relaxed);
        let (end, mut now) = (clock.now() + time, clock.now());
        while commands.len() < limit && now < end && !is_over() {
            thread::park_timeout(LOOK_EVERY.min(end - now));
            now = clock.now();
        }
        self.is_active.store(false, Ordering::Relaxed);
        Ok(TraceRecord {
            commands: std::iter::from_fn(|| commands.pop()).take(limit).collect(),
            dropped: self.dropped.load(Ordering::Relaxed),
            origin_unix_nanos: clock.origin_unix_nanos(),
        })
    }
}

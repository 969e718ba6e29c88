//! A trace of I/O commands: when each of them reached its stages, for an operator who asks for it.
//!
//! While none is taken a core looks at one flag in each turn, and nowhere else.

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

/// The most commands of a trace. Doubled, a target that was asked for one keeps 16 MiB; not
/// measured.
pub(crate) const MAX_TRACED: usize = 1 << 16;
/// How often a trace looks whether it has all that it may have. Doubled, it ends up to 40 ms later.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// An I/O command that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedCommand {
    pub(crate) cntlid: Cntlid,
    pub(crate) qid: Qid,
    pub(crate) cid: Cid,
    pub(crate) work: IoWork,
    /// When its capsule was there.
    pub(crate) arrived: Time,
    pub(crate) stages: CommandStages,
    pub(crate) succeeded: bool,
}

impl TracedCommand {
    /// A command that ends now. Who it is of is said by its queue.
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

/// The commands of a trace.
#[derive(Debug)]
pub(crate) struct TraceRecord {
    /// In the order of their ends on each core.
    pub(crate) commands: Vec<TracedCommand>,
    /// Commands that ended when there were as many as were asked for.
    pub(crate) dropped: u64,
    /// Nanoseconds between 1970 and [`Time::ZERO`].
    pub(crate) origin_unix_nanos: u64,
}

/// Why no trace was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TraceError {
    #[error("another trace is being taken")]
    Busy,
    #[error("the target does not run")]
    NoClock,
}

/// The trace that is being taken, if there is one.
#[derive(Debug, Default)]
pub(crate) struct CommandTrace {
    is_active: AtomicBool,
    limit: AtomicUsize,
    dropped: AtomicU64,
    commands: OnceLock<ArrayQueue<TracedCommand>>,
    /// That of the cores.
    clock: OnceLock<Clock>,
    taking: Mutex<()>,
}

impl CommandTrace {
    /// The cores go by this clock.
    pub(crate) fn set_clock(&self, clock: Clock) {
        // A target has one set of cores.
        let _ = self.clock.set(clock);
    }

    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Takes down a command, if there is room.
    pub(crate) fn add(&self, command: TracedCommand) {
        let Some(commands) = self.commands.get() else { return };
        let has_room = commands.len() < self.limit.load(Ordering::Relaxed);
        if !has_room || commands.push(command).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a trace of at most `limit` commands, up to [`MAX_TRACED`], that end within a time.
    /// Blocks until that is over, there are so many, or `is_over` says so.
    ///
    /// # Errors
    /// Another one is being taken, or no core runs.
    pub(crate) fn take(
        &self,
        time: Duration,
        limit: usize,
        is_over: impl Fn() -> bool,
    ) -> Result<TraceRecord, TraceError> {
        let Ok(_taking) = self.taking.try_lock() else { return Err(TraceError::Busy) };
        let clock = self.clock.get().ok_or(TraceError::NoClock)?;
        let commands = self.commands.get_or_init(|| ArrayQueue::new(MAX_TRACED));
        // What cores added when the last one was over.
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

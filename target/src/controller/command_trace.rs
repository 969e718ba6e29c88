//! Times at which a command reached the points of its way, for the log of slow commands and for
//! traces, which an operator requests.
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
use crate::driver::clock::Clock;

/// Maximum number of commands in a trace. The first trace allocates 8 MiB for them.
pub(crate) const MAX_TRACED: usize = 1 << 16;
/// Interval at which a trace is checked for its end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Point on the way of a command at which its time is taken. The last one is the end of the
/// command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TracePoint {
    /// The command's capsule has arrived, and the command has a slot.
    Arrived,
    /// The command has got a data buffer.
    Buffered,
    /// Storage or the controller begins, after the data was fetched from the host.
    Executing,
}

/// Times of the poll group turns in which a command reached its [`TracePoint`]s. The time of a
/// point that it has not reached, or does not have, is earlier than that of its arrival (left by
/// the slot's previous command).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandTimes([Time; 3]);

/// Durations of the stages of a command, which add up to the time from its arrival to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommandStages {
    /// Wait for a data buffer.
    pub(crate) buffer: Duration,
    /// Wait for the data that is fetched from the host.
    pub(crate) fetch: Duration,
    /// Time from the start of the storage operation to the end of the command.
    pub(crate) storage: Duration,
}

impl CommandTimes {
    /// Records that the command reaches a point.
    pub(crate) fn reach(&mut self, point: TracePoint, now: Time) {
        self.0[point as usize] = now;
    }

    /// Time at which the command's capsule arrived.
    pub(crate) fn arrived(&self) -> Time {
        self.0[TracePoint::Arrived as usize]
    }

    /// Returns the durations of the stages of a command that ends at `now`.
    pub(crate) fn stages(&self, now: Time) -> CommandStages {
        let Self([arrived, buffered, executing]) = *self;
        let was_executed = executing >= arrived;
        let had_buffer = match buffered >= arrived {
            true => buffered,
            // The command needed no buffer.
            false if was_executed => arrived,
            // The command waited for a buffer until it ended.
            false => now,
        };
        let began = if was_executed { executing } else { now };
        CommandStages {
            buffer: had_buffer - arrived,
            fetch: began - had_buffer,
            storage: now - began,
        }
    }
}

/// Record of an I/O command that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedCommand {
    pub(crate) cntlid: Cntlid,
    pub(crate) qid: Qid,
    pub(crate) cid: Cid,
    pub(crate) work: IoWork,
    pub(crate) arrived: Time,
    pub(crate) stages: CommandStages,
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
        let (work, arrived, stages) = (*work, times.arrived(), times.stages(now));
        Self { cntlid, qid, cid, work, arrived, stages, succeeded }
    }
}

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
    /// Present time of the cores; `None` before they are started.
    pub(crate) fn now(&self) -> Option<Time> {
        self.clock.get().map(Clock::now)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    fn stages(buffered: u64, executing: u64) -> [u64; 3] {
        let at = |ms: u64| Time::from_nanos(ms * 1_000_000);
        let times = CommandTimes([at(100), at(buffered), at(executing)]);
        let CommandStages { buffer, fetch, storage } = times.stages(at(200));
        [buffer, fetch, storage].map(|stage| stage.as_millis() as u64)
    }

    #[test]
    fn a_command_is_in_one_stage_at_a_time() {
        assert_eq!(stages(110, 140), [10, 30, 60]);
        assert_eq!(stages(100, 100), [0, 0, 100]);
        // Times of the slot's previous command.
        assert_eq!(stages(50, 160), [0, 60, 40], "its data came in the capsule");
        assert_eq!(stages(130, 50), [30, 70, 0], "the host did not give its data");
        assert_eq!(stages(50, 50), [100, 0, 0], "no buffer was free");
    }
}

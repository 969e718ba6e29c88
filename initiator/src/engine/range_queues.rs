//! Ranges of a controller that wait, and their commands in flight.

use std::collections::VecDeque;

use rdma::Time;

use crate::engine::arena::{Arena, RangeKey, RunKey};
use crate::engine::block_plan::BlockStep;
use crate::engine::range_op::RangeOp;
use crate::memory::bounce::BounceChunk;
use crate::types::options::Class;

/// Bytes that are sent of one of several plans before the next. With twice as many, the last of 480
/// rows of 2 KiB beside a plan of long ranges is sent after half as many of their commands.
const TURN_BYTES: u64 = 128 << 10;

/// Most bytes of background ranges in flight per controller, which foreground ranges wait for. With
/// twice as many, a row of 2 KiB waits for 9 ms beside 400 MiB from a target that sends 450 MB/s.
const MAX_BACKGROUND_BYTES: u64 = 2 << 20;

/// Most bytes of ranges in flight per I/O queue; a single command may be longer. More would wait at
/// a slow target while the time-out of its range runs. With twice as many, a target that sends 60
/// MB/s delays the last range by 0.5 s.
const MAX_QUEUE_BYTES: u64 = 16 << 20;

/// Ranges and plans of a controller with commands to send, and the sums of those in flight.
#[derive(Default)]
pub(crate) struct RangeQueues {
    /// Ranges with commands to send, by class.
    pub(crate) ready: [VecDeque<RangeKey>; Class::COUNT],
    /// Plans with ranges that were not started, by class.
    pub(crate) runs: [VecDeque<RunKey>; Class::COUNT],
    /// Turns of ranges and plans, by class.
    pub(crate) turns: [IssueTurns; Class::COUNT],
    /// Bytes of ranges in progress for which no command was sent.
    pub(crate) unissued_bytes: u64,
    pub(crate) in_flight: CommandsInFlight,
    pub(crate) background: CommandsInFlight,
    /// Blocks that were read and modified for partial writes, and must be written.
    pub(crate) modified: VecDeque<RangeCommand>,
    /// Writes that wait for another write to the same blocks, which is in progress or fenced.
    pub(crate) blocked: VecDeque<RangeKey>,
    /// Ranges that wait before a retry, each with the time of the retry.
    pub(crate) delayed: Vec<(Time, RangeKey)>,
}

impl RangeQueues {
    /// Returns the source of the next command of a class; the last `held` runs in line are skipped.
    pub(crate) fn next_line(&self, class: Class, held: usize) -> Option<IssueLine> {
        let runs = &self.runs[class as usize];
        let run = if held < runs.len() { runs.front() } else { None };
        let range = self.ready[class as usize].front();
        match (range, run) {
            (Some(&range), None) => Some(IssueLine::Range(range)),
            (Some(&range), Some(_)) if self.turns[class as usize].ranges_left > 0 => {
                Some(IssueLine::Range(range))
            }
            (_, Some(&run)) => Some(IssueLine::Run(run)),
            (None, None) => None,
        }
    }

    /// Moves the first run of a class behind the others.
    pub(crate) fn rotate_runs(&mut self, class: Class) {
        let runs = &mut self.runs[class as usize];
        if !runs.is_empty() {
            runs.rotate_left(1);
        }
    }

    /// Returns whether a command of this length keeps the bytes in flight within
    /// [`MAX_QUEUE_BYTES`] per queue.
    pub(crate) fn has_room(&self, length_bytes: u64, queues: usize) -> bool {
        let CommandsInFlight { commands, bytes } = self.in_flight;
        commands == 0 || bytes + length_bytes <= queues as u64 * MAX_QUEUE_BYTES
    }

    /// Returns whether another background command may be sent, on queues with as many `slots`. The
    /// limit bounds how long a foreground range waits for those in flight.
    pub(crate) fn has_background_room(&self, slots: impl Fn() -> usize) -> bool {
        let CommandsInFlight { commands, bytes } = self.background;
        commands == 0 || (commands < slots() / 2 && bytes < MAX_BACKGROUND_BYTES)
    }

    /// Records that a command was sent.
    pub(crate) fn note_sent(&mut self, class: Class, bytes: u64) {
        self.unissued_bytes -= bytes;
        self.in_flight.add(bytes);
        if class == Class::Background {
            self.background.add(bytes);
        }
    }

    /// Records that a command has ended.
    pub(crate) fn note_ended(&mut self, class: Class, bytes: u64) {
        self.in_flight.remove(bytes);
        if class == Class::Background {
            self.background.remove(bytes);
        }
    }

    /// Queues writes that waited for writes of this host; false if none waited.
    pub(crate) fn resume_writes(&mut self, ops: &Arena<RangeKey, RangeOp>) -> bool {
        // The next range of a run may wait, which the run keeps.
        let has_runs = self.runs.iter().any(|runs| !runs.is_empty());
        let has_waiting = has_runs || !self.blocked.is_empty();
        while let Some(blocked) = self.blocked.pop_back() {
            self.ready[ops[blocked].options.class as usize].push_front(blocked);
        }
        has_waiting
    }

    /// Queues ranges whose pause before a retry has passed.
    pub(crate) fn resume_delayed(&mut self, now: Time, ops: &Arena<RangeKey, RangeOp>) {
        let Self { ready, delayed, .. } = self;
        delayed.retain(|&(time, op)| {
            if time <= now {
                // Before ranges that were not started, since its time-out is running.
                ready[ops[op].options.class as usize].push_front(op);
            }
            time > now
        });
    }

    /// Returns when the next range is due for a retry.
    pub(crate) fn next_delayed(&self) -> Option<Time> {
        self.delayed.iter().map(|&(time, _)| time).min()
    }

    /// Removes ranges from the lists of waiting ranges.
    pub(crate) fn retain(&mut self, keep: impl Fn(RangeKey) -> bool) {
        self.ready.iter_mut().for_each(|ready| ready.retain(|&queued| keep(queued)));
        self.blocked.retain(|&queued| keep(queued));
        self.delayed.retain(|&(_, queued)| keep(queued));
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandsInFlight {
    pub(crate) commands: usize,
    /// Bytes that the commands transfer for their ranges.
    pub(crate) bytes: u64,
}

impl CommandsInFlight {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.commands += 1;
        self.bytes += bytes;
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        self.commands -= 1;
        self.bytes -= bytes;
    }
}

/// A read or write command for a part of a range.
pub(crate) struct RangeCommand {
    pub(crate) op: RangeKey,
    /// First byte in the namespace that it covers.
    pub(crate) start: u64,
    pub(crate) step: BlockStep,
    /// Bounce chunk of its blocks; `None` if they are transferred directly.
    pub(crate) chunk: Option<BounceChunk>,
    pub(crate) stage: BlockStage,
    /// Time at which it was pushed to its queue.
    pub(crate) sent: Time,
}

/// Step of the transfer of its blocks that a [`RangeCommand`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockStage {
    /// Read, or Write of blocks whose bytes are all known.
    Transfer,
    /// Read of blocks that a partial write modifies.
    Fetch,
    /// Read Ranges, for all ranges of a list.
    List,
}

/// Source of the next command of a class.
pub(crate) enum IssueLine {
    /// A range of a ring or batch, or one that is retried.
    Range(RangeKey),
    Run(RunKey),
}

/// Bytes that the queued ranges and the current run may still send in this turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IssueTurns {
    ranges_left: u64,
    run_left: u64,
}

impl Default for IssueTurns {
    fn default() -> Self {
        Self { ranges_left: TURN_BYTES, run_left: TURN_BYTES }
    }
}

impl IssueTurns {
    /// Subtracts bytes that queued ranges have sent.
    pub(crate) fn of_ranges(&mut self, bytes: u64) {
        self.ranges_left = self.ranges_left.saturating_sub(bytes);
    }

    /// Subtracts bytes that a run has sent; true if it is the turn of the next run.
    pub(crate) fn of_run(&mut self, bytes: u64) -> bool {
        self.run_left = self.run_left.saturating_sub(bytes);
        let is_over = self.run_left == 0;
        if is_over {
            *self = Self::default();
        }
        is_over
    }
}

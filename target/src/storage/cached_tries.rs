//! Reads of the page cache, which the core executes itself: at most 1 MiB in each turn, since its
//! other work waits for the copies.

use std::collections::VecDeque;

use rdma::Time;

use super::engine::Engine;
use crate::backend::{Backend, CachedRead, Operation, Step};

/// Most bytes of reads from the page cache in one turn. Their copies take about 100 us, during
/// which packets and other hosts wait.
const TURN_BYTES: u64 = 1 << 20;
/// Bytes of the turn that an attempt uses up in addition to its length.
const TRY_BYTES: u64 = 4096;

/// Remaining bytes of the present turn, and the operations that wait for a read of the page cache.
pub(super) struct CachedTries {
    left: u64,
    waiting: VecDeque<WaitingTry>,
}

/// An operation whose next step is a read of the page cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitingTry {
    pub(super) index: u32,
    pub(super) serial: u32,
    pub(super) read: CachedRead,
    pub(super) since: Time,
}

impl CachedTries {
    pub(super) fn new() -> Self {
        Self { left: TURN_BYTES, waiting: VecDeque::new() }
    }

    /// Reserves memory for this many waiting operations.
    pub(super) fn reserve(&mut self, operations: usize) {
        self.waiting.reserve(operations.saturating_sub(self.waiting.len()));
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Deadline for waiting operations. It has already passed, so the next turn follows
    /// immediately.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.front().map(|first| first.since)
    }

    /// Sets the remaining bytes to [`TURN_BYTES`] at the start of a turn.
    pub(super) fn begin_turn(&mut self) {
        self.left = TURN_BYTES;
    }

    /// Queues an operation behind those that wait, for this turn or a later one.
    pub(super) fn wait(&mut self, waiting: WaitingTry) {
        self.waiting.push_back(waiting);
    }

    /// Removes and returns the operation that has waited longest, unless the turn has no bytes
    /// left.
    pub(super) fn next(&mut self) -> Option<WaitingTry> {
        if self.left == 0 { None } else { self.waiting.pop_front() }
    }

    /// Does as [`CachedTries::advance`] does, unless others wait: a new operation queues behind
    /// them.
    pub(super) fn advance_new(
        &mut self,
        engine: &mut dyn Engine,
        now: Time,
        backend: &dyn Backend,
        operation: &mut Operation,
        step: Step,
    ) -> Step {
        match self.waiting.is_empty() {
            true => self.advance(engine, now, backend, operation, step),
            false => step,
        }
    }

    /// Reads the page cache while that is the operation's next step and the turn has bytes left.
    /// Returns the step that follows.
    pub(super) fn advance(
        &mut self,
        engine: &mut dyn Engine,
        now: Time,
        backend: &dyn Backend,
        operation: &mut Operation,
        mut step: Step,
    ) -> Step {
        while let Step::ReadCached(read) = step {
            if self.left == 0 {
                break;
            }
            self.left = self.left.saturating_sub(TRY_BYTES + u64::from(read.part.length()));
            // SAFETY: the part belongs to the span of the operation, which is borrowed.
            #[expect(unsafe_code, reason = "hands lent memory to a system call")]
            let result = unsafe { engine.read_cached(read) };
            step = backend.resume(now, operation, result);
        }
        step
    }
}

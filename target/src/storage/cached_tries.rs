//! Reads of the page cache, executed by the core itself: in each turn as many as other work can
//! wait for.

use std::collections::VecDeque;

use rdma::Time;

use super::engine::Engine;
use crate::backend::{Backend, CachedRead, Operation, Step};

/// Most bytes of reads from the page cache in one turn. Their copies take about 100 us, during
/// which packets and other hosts wait.
const TURN_BYTES: u64 = 1 << 20;
/// Cost of an attempt in addition to its bytes.
const TRY_BYTES: u64 = 4096;

/// Remaining bytes of a turn, and the operations that wait for the next turn.
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

    /// Reserves room for this many waiting operations.
    pub(super) fn reserve(&mut self, operations: usize) {
        self.waiting.reserve(operations.saturating_sub(self.waiting.len()));
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Time since which the first one waits.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waiting.front().map(|first| first.since)
    }

    /// Restores the bytes at the start of a turn.
    pub(super) fn begin_turn(&mut self) {
        self.left = TURN_BYTES;
    }

    /// Queues an operation for a later turn or its place in this one.
    pub(super) fn wait(&mut self, waiting: WaitingTry) {
        self.waiting.push_back(waiting);
    }

    /// Operation that has waited longest, unless the turn has no bytes left.
    pub(super) fn next(&mut self) -> Option<WaitingTry> {
        if self.left == 0 { None } else { self.waiting.pop_front() }
    }

    /// Step of a new operation after its attempts, unless others wait.
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

    /// Makes attempts while the operation's next step is one and the turn has bytes left.
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

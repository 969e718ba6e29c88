//! Storage of one core: runs operations on backends through an engine.
//!
//! A backend returns the system calls of an operation, one step at a time; the engine runs them;
//! this module keeps the two together, and the timers of operations that a decorator holds back.

pub(crate) mod batching;
mod cached_tries;
mod engine;
mod inline;
mod uring;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use rdma::Time;
use slab::Slab;

use self::batching::gate::{GateDecision, Gates, Released, Visit};
use self::cached_tries::{CachedTries, WaitingTry};
pub use self::engine::{CallId, Engine, EngineEvent, EngineStats};
pub use self::inline::Inline;
pub use self::uring::{BufferRegistration, Uring, UringError};

use crate::backend::{
    Backend, BackendError, ClosingMedium, Operation, OperationKind, Step, SystemCall,
};
use crate::deliberate_bugs::{self, Bug};

/// The user's name for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(pub u64);

/// Operations that go on in one turn because their time has come. Each may take long, and other
/// work is to be served in between. Doubled, that work waits up to twice as long; not measured.
const TIMERS_AT_ONCE: usize = 16;

/// Tag of operations without a request, which only a deliberate bug makes.
const NO_REQUEST: Tag = Tag(u64::MAX);

/// Names an operation under way, to cancel it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationKey {
    index: u32,
    serial: u32,
}

/// The result of handing over an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Submitted {
    /// Its end will be reported.
    UnderWay(OperationKey),
    /// It took no time, and is over. Nothing is reported.
    Over(Result<(), BackendError>),
}

/// The end of an operation, or of an attempt to cancel it.
#[derive(Debug)]
pub(crate) enum StorageReport {
    /// The operation has ended, and its span is free.
    Done {
        /// The tag that it was begun with.
        tag: Tag,
        /// Success, or the cause of the failure.
        result: Result<(), BackendError>,
    },
    /// The operation can not be cancelled: it will end by itself.
    NotCancelled {
        /// The tag that it was begun with.
        tag: Tag,
    },
}

/// Runs operations for one core. Between [`Storage::reserve`] calls it allocates nothing.
pub(crate) struct Storage {
    // Dropped first: it waits for calls of the kernel on the operations' memory.
    engine: Box<dyn Engine>,
    gates: Gates,
    running: Slab<Running>,
    /// Operations begun until now. The low bits distinguish those that use one slot after another.
    begun: u64,
    timers: BinaryHeap<Reverse<(Time, u32, u32)>>,
    tries: CachedTries,
    reports: VecDeque<StorageReport>,
}

struct Running {
    serial: u32,
    tag: Tag,
    backend: Arc<dyn Backend>,
    operation: Operation,
    /// A system call is at work or held back, else a timer runs or a try waits for its turn.
    in_call: bool,
    /// The stay of that call at its device, if a gate counts it.
    visit: Option<Visit>,
}

impl Storage {
    /// Storage that nothing was reserved in yet.
    pub(crate) fn new(engine: Box<dyn Engine>) -> Self {
        let (timers, reports) = (BinaryHeap::new(), VecDeque::new());
        let (gates, running) = (Gates::default(), Slab::new());
        let tries = CachedTries::new();
        Self { engine, gates, running, begun: 0, timers, tries, reports }
    }

    /// Space for this many operations at once, in all.
    pub(crate) fn reserve(&mut self, operations: usize) {
        let more = |length: usize| operations.saturating_sub(length);
        self.running.reserve(more(self.running.len()));
        self.timers.reserve(more(self.timers.len()));
        self.tries.reserve(operations);
        // Each operation may leave an answer to a cancellation and its end.
        self.reports.reserve((2 * operations).saturating_sub(self.reports.len()));
        self.engine.reserve(operations);
        self.gates.reserve(operations);
    }

    /// Starts an operation. Its end is reported under `tag`, if it is not over at once.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        tag: Tag,
        backend: &Arc<dyn Backend>,
        mut operation: Operation,
    ) -> Submitted {
        let kind = operation.kind();
        let step = backend.start(now, &mut operation);
        let engine = &mut *self.engine;
        let step = self.tries.advance_new(engine, now, &**backend, &mut operation, step);
        self.begun += 1;
        let serial = self.begun as u32;
        if let Step::Done(result) = step {
            return Submitted::Over(result);
        }
        let backend = Arc::clone(backend);
        let running = Running { serial, tag, backend, operation, in_call: false, visit: None };
        let index = self.running.insert(running) as u32;
        let acknowledged = deliberate_bugs::has(Bug::AcknowledgeEarly)
            && matches!(kind, OperationKind::Write { .. });
        if acknowledged {
            self.report_abandoned(index, Ok(()));
        }
        self.take(now, index, step);
        Submitted::UnderWay(OperationKey { index, serial })
    }

    /// Tries to keep an operation from happening. Its end is reported in any case, as
    /// [`BackendError::Cancelled`] if that worked; if it can not work
    /// [`StorageReport::NotCancelled`] comes first.
    pub(crate) fn cancel(&mut self, key: OperationKey) {
        let Some(running) = self.running.get(key.index as usize) else { return };
        if running.serial != key.serial {
            return;
        }
        if running.in_call && deliberate_bugs::has(Bug::DropAbort) {
            self.report_abandoned(key.index, Err(BackendError::Cancelled));
        } else if running.in_call {
            if let Some(released) = self.gates.release(call_id(key)) {
                self.hand_over(released);
            }
            self.engine.cancel(call_id(key));
        } else {
            self.finish(key.index, Err(BackendError::Cancelled));
        }
    }

    /// Hands over submitted calls and fetches ended ones; true if anything happened.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        self.tries.begin_turn();
        let mut progress = self.turn_engine(now);
        progress |= self.run_waiting_tries(now);
        progress |= self.run_timers(now);
        self.gates.settle(now);
        if self.hand_over_released() {
            self.turn_engine(now);
            progress = true;
        }
        progress
    }

    /// The oldest report that was not taken yet.
    pub(crate) fn next_report(&mut self) -> Option<StorageReport> {
        self.reports.pop_front()
    }

    /// Whether no operation is under way on the medium of a namespace that was removed. Then its
    /// files are not registered any more.
    pub(crate) fn retire(&mut self, medium: &ClosingMedium) -> bool {
        let backend = medium.backend.as_ptr();
        let uses = |running: &Running| ptr::addr_eq(Arc::as_ptr(&running.backend), backend);
        if self.running.iter().any(|(_, running)| uses(running)) {
            return false;
        }
        medium.files.iter().for_each(|file| self.engine.forget(*file));
        true
    }

    /// Drops every operation, after waiting for the kernel to be done with their memory. For the
    /// end.
    pub(crate) fn abandon(&mut self) {
        // Dropping the engine waits.
        self.engine = Box::new(Inline::new());
        self.gates.clear();
        self.running.clear();
        self.timers.clear();
        self.tries.clear();
        self.reports.clear();
    }

    /// When [`Storage::turn`] must run again though nothing completes.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        timer.into_iter().chain(self.tries.deadline()).chain(self.gates.deadline()).min()
    }

    /// Operations that were begun, and those that are over, together; a growth since the last call
    /// is work.
    pub(crate) fn begun_and_ended(&self) -> u64 {
        2 * self.begun - self.running.len() as u64
    }

    /// Number of operations that have begun and not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Sleeps until a system call ends, one of `watched` is readable, or `timeout` passes. For
    /// drivers.
    pub(crate) fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>) {
        self.engine.sleep(watched, timeout);
    }

    /// Whether this descriptor was found readable by a sleep or later; each time is reported once.
    pub(crate) fn was_readable(&mut self, watched: RawFd) -> bool {
        self.engine.was_readable(watched)
    }

    /// A descriptor that was watched is to be closed.
    pub(crate) fn unwatch(&mut self, watched: RawFd) {
        self.engine.unwatch(watched);
    }

    /// Counters of the engine.
    pub(crate) fn stats(&self) -> EngineStats {
        self.engine.stats()
    }

    fn turn_engine(&mut self, now: Time) -> bool {
        self.engine.turn();
        let mut progress = false;
        while let Some(event) = self.engine.next_event() {
            progress = true;
            self.handle(now, event);
        }
        progress
    }

    fn hand_over_released(&mut self) -> bool {
        let mut progress = false;
        while let Some(released) = self.gates.next_released() {
            progress = true;
            self.hand_over(released);
        }
        progress
    }

    fn hand_over(&mut self, Released { call, what, visit }: Released) {
        let running = self.running.get_mut(operation_key(call).index as usize);
        running.expect("an operation outlives its calls").visit = Some(visit);
        self.start(call, what);
    }

    fn start(&mut self, call: CallId, what: SystemCall) {
        // SAFETY: the part belongs to the operation's span, or is constant zeros; the operation
        // keeps its span in `running` until its last call ended.
        #[expect(unsafe_code, reason = "hands lent memory to the kernel")]
        unsafe {
            self.engine.start(call, what);
        }
    }

    fn handle(&mut self, now: Time, event: EngineEvent) {
        match event {
            EngineEvent::Ended { call, result } => {
                let index = operation_key(call).index;
                let running =
                    self.running.get_mut(index as usize).expect("an operation outlives its calls");
                debug_assert_eq!(running.serial, operation_key(call).serial);
                running.in_call = false;
                if let Some(visit) = running.visit.take() {
                    self.gates.leave(visit);
                }
                let step = running.backend.resume(now, &mut running.operation, result);
                self.take(now, index, step);
            }
            EngineEvent::NotCancelled { call } => {
                let key = operation_key(call);
                let running = self.running.get(key.index as usize);
                if let Some(running) = running.filter(|running| running.serial == key.serial) {
                    self.reports.push_back(StorageReport::NotCancelled { tag: running.tag });
                }
            }
        }
    }

    /// Makes the tries that had to wait for this turn, as far as its bytes go.
    fn run_waiting_tries(&mut self, now: Time) -> bool {
        let mut progress = false;
        while let Some(WaitingTry { index, serial, read, .. }) = self.tries.next() {
            progress = true;
            let running = self.running.get_mut(index as usize);
            let Some(running) = running.filter(|running| running.serial == serial) else {
                continue;
            };
            let Running { backend, operation, .. } = running;
            let step = Step::ReadCached(read);
            let step = self.tries.advance(&mut *self.engine, now, &**backend, operation, step);
            self.take(now, index, step);
        }
        progress
    }

    fn run_timers(&mut self, now: Time) -> bool {
        let mut progress = false;
        for _ in 0..TIMERS_AT_ONCE {
            let due = self.timers.peek().filter(|Reverse((at, ..))| *at <= now);
            let Some(&Reverse((_, index, serial))) = due else { break };
            self.timers.pop();
            progress = true;
            let running = self.running.get_mut(index as usize);
            let Some(running) = running.filter(|running| running.serial == serial) else {
                continue;
            };
            let step = running.backend.resume(now, &mut running.operation, 0);
            self.take(now, index, step);
        }
        progress
    }

    fn take(&mut self, now: Time, index: u32, step: Step) {
        let running = self.running.get_mut(index as usize).expect("a step is of a live operation");
        let key = OperationKey { index, serial: running.serial };
        match step {
            Step::Done(result) => self.finish(index, result),
            Step::Call(what) => {
                running.in_call = true;
                match self.gates.admit(now, call_id(key), what) {
                    GateDecision::Admitted(visit) => {
                        running.visit = visit;
                        self.start(call_id(key), what);
                    }
                    GateDecision::Held => {}
                }
            }
            Step::ReadCached(read) => {
                let serial = key.serial;
                self.tries.wait(WaitingTry { index, serial, read, since: now });
            }
            Step::WaitUntil(at) => self.timers.push(Reverse((at, index, key.serial))),
        }
    }

    fn finish(&mut self, index: u32, result: Result<(), BackendError>) {
        let running = self.running.remove(index as usize);
        if deliberate_bugs::POSSIBLE && running.tag == NO_REQUEST {
            return;
        }
        self.reports.push_back(StorageReport::Done { tag: running.tag, result });
    }

    /// Reports the end of an operation that goes on.
    fn report_abandoned(&mut self, index: u32, result: Result<(), BackendError>) {
        let running = self.running.get_mut(index as usize).expect("it is under way");
        let tag = std::mem::replace(&mut running.tag, NO_REQUEST);
        self.reports.push_back(StorageReport::Done { tag, result });
    }
}

fn call_id(key: OperationKey) -> CallId {
    CallId(u64::from(key.serial) << 32 | u64::from(key.index))
}

fn operation_key(call: CallId) -> OperationKey {
    OperationKey { index: call.0 as u32, serial: (call.0 >> 32) as u32 }
}

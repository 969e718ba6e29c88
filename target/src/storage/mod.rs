//! Storage of one core: executes the operations of its commands on backends, through an engine.
//!
//! A backend returns the system calls of an operation, one step at a time, and the engine executes
//! them. This module connects the two, and keeps the timers of operations that have to wait.

mod calls;
mod inline;
mod ring_restrictions;
mod trial;
mod uring;
mod uring_error;

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

use self::calls::{CachedTries, GateDecision, Gates, Released, Visit, WaitingTry};
pub use self::calls::{CallId, Engine, EngineEvent, EngineStats};
pub use self::inline::Inline;
pub use self::uring::{BufferRegistration, Uring};
pub use self::uring_error::UringError;

use crate::backend::{
    Backend, BackendError, ClosingMedium, Operation, OperationKind, Step, SystemCall,
};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::turn::TIMERS_AT_ONCE;

/// Identifies a running operation, for [`Storage::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationKey {
    index: u32,
    serial: u32,
}

/// Result of submitting an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Submitted {
    /// The operation is running. A [`StorageReport`] follows when it ends.
    UnderWay(OperationKey),
    /// The operation ended immediately, with this result. No [`StorageReport`] follows.
    Over(Result<(), BackendError>),
}

/// End of an operation, or of an attempt to cancel it.
#[derive(Debug)]
pub(crate) enum StorageReport<T> {
    /// The operation has ended, and its span is free.
    Done {
        tag: T,
        /// Success, or the cause of the failure.
        result: Result<(), BackendError>,
    },
    /// The operation could not be cancelled; `Done` follows when it ends.
    NotCancelled { tag: T },
}

/// Executes operations for one core. Allocates memory only in [`Storage::reserve`]. The caller
/// gives each operation a tag (`T`), by which it recognises the reports.
pub(crate) struct Storage<T> {
    // Dropped first: its drop waits for system calls that use the operations' memory.
    engine: Box<dyn Engine>,
    gates: Gates,
    running: Slab<Running<T>>,
    /// Operations started so far. The low bits distinguish successive users of a slot.
    begun: u64,
    timers: BinaryHeap<Reverse<(Time, u32, u32)>>,
    tries: CachedTries,
    reports: VecDeque<StorageReport<T>>,
}

struct Running<T> {
    serial: u32,
    /// `None` once a deliberate bug has reported the end of an operation that continues.
    tag: Option<T>,
    backend: Arc<dyn Backend>,
    operation: Operation,
    progress: CallProgress,
}

/// Progress of an operation with its system calls. It makes one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallProgress {
    /// No call was started: the operation waits for a timer or to read the page cache.
    Between,
    /// A gate holds the call back.
    Held,
    /// The call is running; with the visit if a gate counts it.
    Running(Option<Visit>),
}

/// Event of an operation for [`CallProgress::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallEvent {
    /// The gates have decided on the next call.
    Decided(GateDecision),
    /// The gate has released the call.
    Released(Visit),
    /// The call has returned.
    Returned,
}

impl CallProgress {
    /// Returns the progress after an event; `None` for an event that cannot follow.
    fn step(self, event: CallEvent) -> Option<Self> {
        match (self, event) {
            (Self::Between, CallEvent::Decided(GateDecision::Admitted(visit))) => {
                Some(Self::Running(visit))
            }
            (Self::Between, CallEvent::Decided(GateDecision::Held)) => Some(Self::Held),
            (Self::Held, CallEvent::Released(visit)) => Some(Self::Running(Some(visit))),
            (Self::Running(_), CallEvent::Returned) => Some(Self::Between),
            _ => None,
        }
    }
}

impl<T> Running<T> {
    /// Records an event; an impossible one changes nothing.
    fn step(&mut self, event: CallEvent) {
        let next = self.progress.step(event);
        debug_assert!(next.is_some(), "{event:?} while {:?}", self.progress);
        self.progress = next.unwrap_or(self.progress);
    }
}

impl<T: Copy> Storage<T> {
    /// Creates storage without room for operations.
    pub(crate) fn new(engine: Box<dyn Engine>) -> Self {
        let (timers, reports) = (BinaryHeap::new(), VecDeque::new());
        let (gates, running) = (Gates::default(), Slab::new());
        let tries = CachedTries::new();
        Self { engine, gates, running, begun: 0, timers, tries, reports }
    }

    /// Reserves memory for `operations` concurrent operations in all.
    pub(crate) fn reserve(&mut self, operations: usize) {
        let more = |length: usize| operations.saturating_sub(length);
        self.running.reserve(more(self.running.len()));
        self.timers.reserve(more(self.timers.len()));
        self.tries.reserve(operations);
        // An operation has at most two reports: `NotCancelled` and `Done`.
        self.reports.reserve((2 * operations).saturating_sub(self.reports.len()));
        self.engine.reserve(operations);
        self.gates.reserve(operations);
    }

    /// Starts an operation. Its report has `tag`, unless the operation ends immediately.
    pub(crate) fn submit(
        &mut self,
        now: Time,
        tag: T,
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
        let progress = CallProgress::Between;
        let running = Running { serial, tag: Some(tag), backend, operation, progress };
        let index = self.running.insert(running) as u32;
        let acknowledged = deliberate_bugs::has(Bug::AcknowledgeEarly)
            && matches!(kind, OperationKind::Write { .. });
        if acknowledged {
            self.report_abandoned(index, Ok(()));
        }
        self.take(now, index, step);
        Submitted::UnderWay(OperationKey { index, serial })
    }

    /// Whether the turn may read more of the page cache, and no operation waits to do so.
    pub(crate) fn may_read_now(&self) -> bool {
        self.tries.may_advance_new()
    }

    /// Whether only the bytes that the turn has read keep it from reading more of the page cache.
    pub(crate) fn has_read_enough(&self) -> bool {
        self.tries.has_used_turn()
    }

    /// Executes a read that waits for nothing: of memory, or of what the page cache has. Returns
    /// whether all bytes were read; if not, the operation has ended without effect. The caller has
    /// asked [`Storage::may_read_now`], for this read and others of together at most
    /// [`CACHED_READ_BYTES`](crate::limits::turn::CACHED_READ_BYTES).
    pub(crate) fn read_now(
        &mut self,
        now: Time,
        backend: &dyn Backend,
        mut operation: Operation,
    ) -> bool {
        if !backend.may_read_now() {
            return false;
        }
        let mut step = backend.start(now, &mut operation);
        if let Step::ReadCached(read) = step {
            step = self.tries.read(&mut *self.engine, now, backend, &mut operation, read);
        }
        let read = matches!(step, Step::Done(Ok(())));
        // Begun and ended, for those who look whether there was work.
        self.begun += u64::from(read);
        read
    }

    /// Tries to cancel an operation. [`StorageReport::Done`] follows in any case, with
    /// [`BackendError::Cancelled`] on success; otherwise [`StorageReport::NotCancelled`] may
    /// precede it.
    pub(crate) fn cancel(&mut self, key: OperationKey) {
        let Some(running) = running_of(&mut self.running, key) else { return };
        match running.progress {
            CallProgress::Between => self.finish(key.index, Err(BackendError::Cancelled)),
            CallProgress::Held | CallProgress::Running(_)
                if deliberate_bugs::has(Bug::DropAbort) =>
            {
                self.report_abandoned(key.index, Err(BackendError::Cancelled));
            }
            CallProgress::Held => {
                if let Some(released) = self.gates.release(call_id(key)) {
                    self.hand_over(released);
                }
                self.engine.cancel(call_id(key));
            }
            CallProgress::Running(_) => self.engine.cancel(call_id(key)),
        }
    }

    /// Submits started calls, handles ended calls and timers, and returns whether there were any.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        self.tries.begin_turn();
        let mut progress = self.turn_engine(now);
        progress |= self.run_waiting_tries(now);
        progress |= self.run_timers(now);
        self.gates.update(now);
        if self.hand_over_released() {
            self.turn_engine(now);
            progress = true;
        }
        progress
    }

    /// Removes and returns the oldest report.
    pub(crate) fn next_report(&mut self) -> Option<StorageReport<T>> {
        self.reports.pop_front()
    }

    /// Unregisters the files of a removed namespace unless an operation still runs on it; returns
    /// whether it did.
    pub(crate) fn release_if_idle(&mut self, medium: &ClosingMedium) -> bool {
        let backend = medium.backend.as_ptr();
        let uses = |running: &Running<T>| ptr::addr_eq(Arc::as_ptr(&running.backend), backend);
        if self.running.iter().any(|(_, running)| uses(running)) {
            return false;
        }
        medium.files.iter().for_each(|file| self.engine.forget(*file));
        true
    }

    /// Waits until no call uses the operations' memory, then drops all operations without reports.
    pub(crate) fn abandon(&mut self) {
        // Dropping the old engine waits for its calls.
        self.engine = Box::new(Inline::new());
        self.gates.clear();
        self.running.clear();
        self.timers.clear();
        self.tries.clear();
        self.reports.clear();
    }

    /// Time at which [`Storage::turn`] must run even if nothing completes.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        timer.into_iter().chain(self.tries.deadline()).chain(self.gates.deadline()).min()
    }

    /// Number of operations started plus number ended; a growth since the last call means work.
    pub(crate) fn begun_and_ended(&self) -> u64 {
        2 * self.begun - self.running.len() as u64
    }

    /// Number of operations that have begun and not ended.
    pub(crate) fn in_flight(&self) -> usize {
        self.running.len()
    }

    /// Sleeps until a system call ends, one of `watched` is readable, or `timeout` passes. Only
    /// drivers call it.
    pub(crate) fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>) {
        self.engine.sleep(watched, timeout);
    }

    /// Whether a descriptor passed to `sleep` was found readable since the last call.
    pub(crate) fn was_readable(&mut self, watched: RawFd) -> bool {
        self.engine.was_readable(watched)
    }

    /// Stops watching a descriptor that is about to be closed.
    pub(crate) fn unwatch(&mut self, watched: RawFd) {
        self.engine.unwatch(watched);
    }

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
        if let Some(running) = running_of(&mut self.running, operation_key(call)) {
            running.step(CallEvent::Released(visit));
            self.start(call, what);
        }
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
                let key = operation_key(call);
                // An operation outlives its calls.
                let Some(running) = running_of(&mut self.running, key) else { return };
                if let CallProgress::Running(Some(visit)) = running.progress {
                    self.gates.leave(visit);
                }
                running.step(CallEvent::Returned);
                let step = running.backend.resume(now, &mut running.operation, result);
                self.take(now, key.index, step);
            }
            EngineEvent::NotCancelled { call } => {
                if let Some(running) = running_of(&mut self.running, operation_key(call)) {
                    let report = running.tag.map(|tag| StorageReport::NotCancelled { tag });
                    self.reports.extend(report);
                }
            }
        }
    }

    /// Executes waiting reads of the page cache, until the bytes of this turn are used up.
    fn run_waiting_tries(&mut self, now: Time) -> bool {
        let mut progress = false;
        while let Some(WaitingTry { index, serial, read, .. }) = self.tries.next() {
            progress = true;
            let Some(running) = running_of(&mut self.running, OperationKey { index, serial })
            else {
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
            let Some(running) = running_of(&mut self.running, OperationKey { index, serial })
            else {
                continue;
            };
            let step = running.backend.resume(now, &mut running.operation, 0);
            self.take(now, index, step);
        }
        progress
    }

    fn take(&mut self, now: Time, index: u32, step: Step) {
        let Some(running) = self.running.get_mut(index as usize) else { return };
        let key = OperationKey { index, serial: running.serial };
        match step {
            Step::Done(result) => self.finish(index, result),
            Step::Call(what) => {
                let decision = self.gates.admit(now, call_id(key), what);
                running.step(CallEvent::Decided(decision));
                if let GateDecision::Admitted(_) = decision {
                    self.start(call_id(key), what);
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
        let tag = self.running.remove(index as usize).tag;
        self.reports.extend(tag.map(|tag| StorageReport::Done { tag, result }));
    }

    /// Reports the end of an operation that continues, for deliberate bugs.
    fn report_abandoned(&mut self, index: u32, result: Result<(), BackendError>) {
        let Some(running) = self.running.get_mut(index as usize) else { return };
        let tag = running.tag.take();
        self.reports.extend(tag.map(|tag| StorageReport::Done { tag, result }));
    }
}

/// Returns the operation with a key, unless it has ended.
fn running_of<T>(running: &mut Slab<Running<T>>, key: OperationKey) -> Option<&mut Running<T>> {
    running.get_mut(key.index as usize).filter(|running| running.serial == key.serial)
}

fn call_id(key: OperationKey) -> CallId {
    CallId(u64::from(key.serial) << 32 | u64::from(key.index))
}

fn operation_key(call: CallId) -> OperationKey {
    OperationKey { index: call.0 as u32, serial: (call.0 >> 32) as u32 }
}

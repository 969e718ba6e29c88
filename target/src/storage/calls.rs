//! System calls of one core: the interface of the engines that execute them (io_uring, or plain
//! calls for tests), and when a call may be executed.
//!
//! Reads of the page cache are executed by the core itself, at most 1 MiB in each turn, since its
//! other work waits for the copies ([`CachedTries`]).
//!
//! Gates hold back calls from a device that is faster if it gets many at a time. Many virtual disks
//! take the queued calls as one job, process one job at a time, and report the end of all calls of
//! a job together. Every job has a fixed cost. A target that answers calls one by one and submits
//! the next ones one by one gives such a device only small jobs. Behind a gate, calls wait while
//! the device is busy, until as many wait as the device has. So it processes one half while the
//! target answers the other. A device that processes calls in parallel may become slower; a
//! [`Trial`] measures which kind it is.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::Duration;

use rdma::Time;

use super::trial::Trial;
use crate::backend::{Backend, CachedRead, DeviceId, FileId, FileRef, Operation, Step, SystemCall};
use crate::limits::turn::{CACHED_TRY_BYTES, CACHED_TURN_BYTES};

/// Weight of the calls at a device from which on it is busy, so that further ones may be held back:
/// 8 calls of 512 bytes, or one of 224 KiB.
const BUSY_WEIGHT: u64 = 256 * 1024;
/// Weight of a call in addition to its length in bytes, for its fixed cost.
const CALL_BYTES: u64 = 32 * 1024;
/// Longest time that a call is held back, even if the device completes none.
const MAX_HOLD: Duration = Duration::from_millis(10);

/// Identifier of a system call, which the caller chooses and does not reuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(pub u64);

/// Event reported by an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A call ended, successfully or not.
    Ended {
        /// The call that ended.
        call: CallId,
        /// Return value of the system call, or a negated `errno`.
        result: i32,
    },
    /// A call could not be cancelled, since it is running or has ended. `Ended` is reported as
    /// well.
    NotCancelled {
        /// The call that was to be cancelled.
        call: CallId,
    },
}

/// Executes system calls on files for one core.
pub trait Engine {
    /// Starts a call. Never fails: a call that does not fit the submission queue waits.
    ///
    /// # Safety
    /// The memory of the call's part stays lent to it until [`Engine::next_event`] has returned its
    /// [`EngineEvent::Ended`].
    #[expect(unsafe_code, reason = "declares a method that takes memory by address")]
    unsafe fn start(&mut self, call: CallId, what: SystemCall);

    /// Reads what is in the page cache, without waiting for a medium, and returns the number of
    /// bytes or a negated `errno`. The default returns `EAGAIN`, for engines without a page cache.
    ///
    /// # Safety
    /// The memory of the part is lent to it until it returns.
    #[expect(unsafe_code, reason = "declares a method that takes memory by address")]
    unsafe fn read_cached(&mut self, _read: CachedRead) -> i32 {
        -libc::EAGAIN
    }

    /// Tries to cancel a call. [`EngineEvent::Ended`] follows in any case, with `ECANCELED` on
    /// success; otherwise [`EngineEvent::NotCancelled`] is reported as well.
    fn cancel(&mut self, call: CallId);

    /// Submits all started calls and reaps ended ones, in one system call at most.
    fn turn(&mut self);

    /// Removes and returns the oldest reaped event.
    fn next_event(&mut self) -> Option<EngineEvent>;

    /// Reserves memory for `calls` concurrent calls, so that none of them allocates.
    fn reserve(&mut self, calls: usize);

    /// Submits everything started and sleeps until a call ends, one of `watched` is readable, or
    /// `timeout` passes. Only drivers call it.
    fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>);

    /// Whether a descriptor passed to `sleep` was found readable since the last call.
    fn was_readable(&mut self, watched: RawFd) -> bool;

    /// Stops watching a descriptor that is about to be closed.
    fn unwatch(&mut self, _watched: RawFd) {}

    /// Unregisters a file that is about to be closed. No call on it is running, and only
    /// `fdatasync` may follow.
    fn forget(&mut self, _file: FileId) {}

    /// Returns the counters since the engine was created.
    fn stats(&self) -> EngineStats;
}

rdma::counters! {
    /// System calls of one engine, by kind.
    pub struct EngineStats {
        /// `io_uring_enter` calls that submitted or reaped without waiting.
        enters,
        /// `io_uring_enter` calls that waited for a completion or a timeout.
        waits,
        /// `io_uring_register` calls, for buffers and files.
        registers,
        /// System calls on files without io_uring.
        plain,
        /// Reads submitted to io_uring.
        reads,
        /// Writes submitted to io_uring.
        writes,
        /// `fdatasync` operations submitted to io_uring.
        syncs,
        /// `fallocate` operations submitted to io_uring.
        fallocates,
        /// Reads and writes with registered (fixed) buffers.
        fixed,
        /// Reads and writes with direct I/O (`O_DIRECT`).
        direct,
        /// Reads and writes with buffered I/O (through the page cache).
        buffered,
        /// Page cache hits: reads that returned bytes from the page cache, without io_uring.
        cached,
        /// Page cache misses: reads with `RWF_NOWAIT` that returned no bytes.
        cache_misses,
        /// Bytes read from the page cache, without io_uring.
        cached_read_bytes,
        /// Bytes copied from locked (`mlock`) mappings, without a system call.
        mapped_read_bytes,
        /// Bytes of buffered reads submitted to io_uring.
        buffered_read_bytes,
        /// Bytes of direct reads submitted to io_uring.
        direct_read_bytes,
    }
}

impl EngineStats {
    pub(super) fn count(&mut self, what: &SystemCall) {
        match what {
            SystemCall::Read { file, part, .. } => {
                self.reads += 1;
                self.count_path(*file);
                let bytes = match file.direct {
                    true => &mut self.direct_read_bytes,
                    false => &mut self.buffered_read_bytes,
                };
                *bytes += u64::from(part.length());
            }
            SystemCall::Write { file, .. } => {
                self.writes += 1;
                self.count_path(*file);
            }
            SystemCall::Sync { .. } => self.syncs += 1,
            SystemCall::Fallocate { .. } => self.fallocates += 1,
        }
    }

    /// Counts a read of the page cache by its result.
    pub(super) fn count_cached(&mut self, read: &CachedRead, result: i32) {
        let bytes = u64::try_from(result).unwrap_or(0);
        match read.mapped {
            Some(_) => self.mapped_read_bytes += bytes,
            None => {
                self.plain += 1;
                self.cache_misses += u64::from(bytes == 0);
            }
        }
        self.cached += u64::from(bytes > 0);
        self.cached_read_bytes += bytes;
    }

    fn count_path(&mut self, file: FileRef) {
        self.direct += u64::from(file.direct);
        self.buffered += u64::from(!file.direct);
    }
}

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
        Self { left: CACHED_TURN_BYTES, waiting: VecDeque::new() }
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

    /// Sets the remaining bytes to [`CACHED_TURN_BYTES`] at the start of a turn.
    pub(super) fn begin_turn(&mut self) {
        self.left = CACHED_TURN_BYTES;
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

    /// Whether [`CachedTries::advance_new`] would read now.
    pub(super) fn may_advance_new(&self) -> bool {
        self.left > 0 && self.waiting.is_empty()
    }

    /// Whether the turn has no bytes left, and no operation waits.
    pub(super) fn has_used_turn(&self) -> bool {
        self.left == 0 && self.waiting.is_empty()
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
        while let Step::ReadCached(read) = step
            && self.left > 0
        {
            step = self.read(engine, now, backend, operation, read);
        }
        step
    }

    /// Reads the page cache, whether the turn has bytes left or not. Returns the step that follows.
    pub(super) fn read(
        &mut self,
        engine: &mut dyn Engine,
        now: Time,
        backend: &dyn Backend,
        operation: &mut Operation,
        read: CachedRead,
    ) -> Step {
        self.left = self.left.saturating_sub(CACHED_TRY_BYTES + u64::from(read.part.length()));
        // SAFETY: the part belongs to the span of the operation, which is borrowed.
        #[expect(unsafe_code, reason = "hands lent memory to a system call")]
        let result = unsafe { engine.read_cached(read) };
        backend.resume(now, operation, result)
    }
}

/// Gates of the devices that one core accesses with direct I/O.
#[derive(Default)]
pub(crate) struct Gates {
    // One for each device. A core uses few.
    gates: Vec<Gate>,
    /// Number of calls that memory is reserved for in each gate.
    room: usize,
}

/// Decision whether a call may be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum GateDecision {
    /// The call may be started. If a gate counts it, report its end with [`Gates::leave`].
    Admitted(Option<Visit>),
    /// The call was kept, and will be returned by [`Gates::next_released`].
    Held,
}

/// A call that its gate counts as being at the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Visit {
    pub(super) gate: u32,
    pub(super) weight: u64,
}

/// A call that was held back and may be started now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Released {
    pub(crate) call: CallId,
    pub(crate) what: SystemCall,
    pub(crate) visit: Visit,
}

struct Gate {
    device: DeviceId,
    /// Weight of the calls at the device.
    inside: u64,
    held: VecDeque<HeldCall>,
    /// Weight of the calls that are held back.
    waiting: u64,
    /// Number of held calls that [`Gates::next_released`] is to return.
    going: usize,
    trial: Trial,
}

struct HeldCall {
    call: CallId,
    what: SystemCall,
    since: Time,
    visit: Visit,
}

impl Gates {
    /// Reserves memory for holding back `calls` calls of each device.
    pub(crate) fn reserve(&mut self, calls: usize) {
        self.room = self.room.max(calls);
        for gate in &mut self.gates {
            gate.held.reserve(self.room.saturating_sub(gate.held.len()));
        }
    }

    /// Decides whether a call may be started now; if not, keeps it. Holds back direct I/O only.
    pub(crate) fn admit(&mut self, now: Time, call: CallId, what: SystemCall) -> GateDecision {
        let (SystemCall::Read { file, part, .. } | SystemCall::Write { file, part, .. }) = what
        else {
            return GateDecision::Admitted(None);
        };
        // Calls answered from the page cache do not reach the device.
        if !file.direct {
            return GateDecision::Admitted(None);
        }
        let index = self.gate_of(file.device);
        let visit = Visit { gate: index as u32, weight: CALL_BYTES + u64::from(part.length()) };
        let gate = &mut self.gates[index];
        if gate.inside >= BUSY_WEIGHT {
            gate.trial.met_busy_device(now);
        }
        if gate.holds() {
            gate.waiting += visit.weight;
            gate.held.push_back(HeldCall { call, what, since: now, visit });
            return GateDecision::Held;
        }
        gate.inside += visit.weight;
        GateDecision::Admitted(Some(visit))
    }

    /// Records the end of a call that was admitted.
    pub(crate) fn leave(&mut self, visit: Visit) {
        let gate = &mut self.gates[visit.gate as usize];
        gate.inside -= visit.weight;
        gate.trial.ended(visit.weight);
    }

    /// Selects the held calls to release. Called after [`Gates::leave`] for all ended calls.
    pub(crate) fn update(&mut self, now: Time) {
        for gate in &mut self.gates {
            gate.trial.update(now);
            let overdue = gate.deadline().is_some_and(|time| time <= now);
            if overdue || !gate.holds() || gate.waiting >= gate.inside {
                gate.going = gate.held.len();
            }
        }
    }

    /// Returns the next call that [`Gates::update`] has released.
    pub(crate) fn next_released(&mut self) -> Option<Released> {
        let gate = self.gates.iter_mut().find(|gate| gate.going > 0)?;
        gate.going -= 1;
        gate.release(0)
    }

    /// Releases one call if it is held back, so that it can be cancelled.
    pub(crate) fn release(&mut self, call: CallId) -> Option<Released> {
        self.gates.iter_mut().find_map(|gate| {
            let place = gate.held.iter().position(|held| held.call == call)?;
            gate.release(place)
        })
    }

    /// Time at which [`Gates::update`] must run to release calls, even if none ends.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.gates.iter().filter_map(Gate::deadline).min()
    }

    /// Drops all devices and the calls held back from them.
    pub(crate) fn clear(&mut self) {
        self.gates.clear();
    }

    fn gate_of(&mut self, device: DeviceId) -> usize {
        if let Some(index) = self.gates.iter().position(|gate| gate.device == device) {
            return index;
        }
        let held = VecDeque::with_capacity(self.room);
        let trial = Trial::default();
        self.gates.push(Gate { device, inside: 0, held, waiting: 0, going: 0, trial });
        self.gates.len() - 1
    }
}

impl Gate {
    /// Whether the gate holds back new calls now.
    fn holds(&self) -> bool {
        self.inside >= BUSY_WEIGHT && self.trial.holds()
    }

    fn release(&mut self, place: usize) -> Option<Released> {
        let HeldCall { call, what, visit, .. } = self.held.remove(place)?;
        self.inside += visit.weight;
        self.waiting -= visit.weight;
        Some(Released { call, what, visit })
    }

    fn deadline(&self) -> Option<Time> {
        self.held.front().map(|held| held.since + MAX_HOLD)
    }
}

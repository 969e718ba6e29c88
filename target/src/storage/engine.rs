//! What runs system calls on files: io_uring, or plain calls where a test or a simulator wants
//! none.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::backend::{FileRef, SystemCall};

/// Names a system call under way; never reused by one engine's user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId(pub u64);

/// What an engine reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// A call ended: what it returned, or a negated `errno`.
    Ended {
        /// Which.
        call: CallId,
        /// As the system call returns it.
        result: i32,
    },
    /// A call could not be cancelled: it is running or over already.
    NotCancelled {
        /// Which.
        call: CallId,
    },
}

/// Runs system calls for one core.
pub trait Engine {
    /// Starts a call. It never refuses: what does not fit the queue of the kernel waits in line.
    ///
    /// # Safety
    /// The memory of the call's part stays lent to it until its [`EngineEvent::Ended`] was
    /// returned.
    #[expect(unsafe_code, reason = "declares a method that takes memory by address")]
    unsafe fn start(&mut self, call: CallId, what: SystemCall);

    /// Tries to keep a call from happening. It ends in any case; if that can not be hastened
    /// [`EngineEvent::NotCancelled`] comes first.
    fn cancel(&mut self, call: CallId);

    /// Hands everything started to the kernel and fetches what is ready, in one system call at
    /// most.
    fn turn(&mut self);

    /// The next event of those fetched.
    fn next_event(&mut self) -> Option<EngineEvent>;

    /// Space for this many calls at once, so that none of them allocates.
    fn reserve(&mut self, calls: usize);

    /// Hands everything started to the kernel and sleeps until a call ends, one of `watched` is
    /// readable, or `timeout` passes. Only drivers call it.
    fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>);

    /// Whether a sleep, or what came after it, found this descriptor readable; said once each time.
    fn was_readable(&mut self, watched: RawFd) -> bool;

    /// Counters.
    fn stats(&self) -> EngineStats;
}

/// System calls of one engine, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// `io_uring_enter` that submitted or reaped without waiting.
    pub enters: u64,
    /// `io_uring_enter` that slept.
    pub waits: u64,
    /// `io_uring_register`.
    pub registers: u64,
    /// Plain file system calls (no io_uring).
    pub plain: u64,
    /// Reads handed over.
    pub reads: u64,
    /// Writes handed over.
    pub writes: u64,
    /// Syncs handed over.
    pub syncs: u64,
    /// Fallocates handed over.
    pub fallocates: u64,
    /// Reads and writes on registered buffers.
    pub fixed: u64,
    /// Reads and writes past the page cache.
    pub direct: u64,
    /// Reads and writes through the page cache.
    pub buffered: u64,
}

impl EngineStats {
    pub(super) fn count(&mut self, what: &SystemCall) {
        match what {
            SystemCall::Read { file, .. } => {
                self.reads += 1;
                self.count_path(*file);
            }
            SystemCall::Write { file, .. } => {
                self.writes += 1;
                self.count_path(*file);
            }
            SystemCall::Sync { .. } => self.syncs += 1,
            SystemCall::Fallocate { .. } => self.fallocates += 1,
        }
    }

    fn count_path(&mut self, file: FileRef) {
        self.direct += u64::from(file.direct);
        self.buffered += u64::from(!file.direct);
    }
}

impl std::ops::AddAssign for EngineStats {
    fn add_assign(&mut self, other: Self) {
        // Without `..`: a counter that is new is added here too.
        let Self {
            enters,
            waits,
            registers,
            plain,
            reads,
            writes,
            syncs,
            fallocates,
            fixed,
            direct,
            buffered,
        } = other;
        self.enters += enters;
        self.waits += waits;
        self.registers += registers;
        self.plain += plain;
        self.reads += reads;
        self.writes += writes;
        self.syncs += syncs;
        self.fallocates += fallocates;
        self.fixed += fixed;
        self.direct += direct;
        self.buffered += buffered;
    }
}

//! Interface of engines, which execute system calls on files: io_uring, or plain calls for tests.

use std::os::fd::RawFd;
use std::time::Duration;

use crate::backend::{CachedRead, FileId, FileRef, SystemCall};

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

//! Engine without io_uring: executes each call immediately on the thread that starts it. For tests,
//! and for the simulator, where the seed must determine the order of events.
#![expect(unsafe_code, reason = "hands lent memory to system calls")]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::calls::{CallId, Engine, EngineEvent, EngineStats};
use crate::backend::{CachedRead, FileRef, SystemCall};

/// Engine that executes each call when it is started.
#[derive(Debug, Default)]
pub struct Inline {
    events: VecDeque<EngineEvent>,
    readable: Vec<RawFd>,
    stats: EngineStats,
}

impl Inline {
    /// Creates an engine without calls.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Engine for Inline {
    unsafe fn start(&mut self, call: CallId, what: SystemCall) {
        self.stats.count(&what);
        self.stats.plain += 1;
        // SAFETY: the part is lent until the end of the call is reported.
        let result = unsafe { run(what) };
        self.events.push_back(EngineEvent::Ended { call, result });
    }

    unsafe fn read_cached(&mut self, read: CachedRead) -> i32 {
        // SAFETY: the caller's promise.
        let result = unsafe { read_cached(read) };
        self.stats.count_cached(&read, result);
        result
    }

    fn cancel(&mut self, call: CallId) {
        self.events.push_back(EngineEvent::NotCancelled { call });
    }

    fn turn(&mut self) {}

    fn next_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    fn reserve(&mut self, calls: usize) {
        self.events.reserve((2 * calls).saturating_sub(self.events.len()));
    }

    fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>) {
        if !self.events.is_empty() {
            return;
        }
        let mut fds: Vec<PollFd<'_>> =
            watched.iter().map(|&fd| PollFd::from_borrowed_fd(borrow(fd), PollFlags::IN)).collect();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted sleep ends early, which callers allow for.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let readable = watched.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        self.readable.extend(readable.map(|(fd, _)| *fd));
    }

    fn was_readable(&mut self, watched: RawFd) -> bool {
        let before = self.readable.len();
        self.readable.retain(|fd| *fd != watched);
        self.readable.len() < before
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }
}

fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: backends and groups keep their descriptors open while they use an engine.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// # Safety
/// The memory of the read's part is lent to it.
pub(super) unsafe fn read_cached(read: CachedRead) -> i32 {
    let CachedRead { file, offset, part, mapped } = read;
    if let Some(place) = mapped {
        // SAFETY: the caller's promise; the operation keeps its backend, which has the mapping.
        return unsafe { place.copy_to(part.address()) } as i32;
    }
    let slice = libc::iovec { iov_base: part.address().cast(), iov_len: part.length() as usize };
    // SAFETY: the caller's promise.
    result_of(unsafe { libc::preadv2(file.fd, &slice, 1, offset as libc::off_t, libc::RWF_NOWAIT) })
}

/// # Safety
/// The memory of the call's part is lent to it.
unsafe fn run(what: SystemCall) -> i32 {
    let result = match what {
        SystemCall::Read { file: FileRef { fd, .. }, offset, part } => {
            let (address, length) = (part.address().cast(), part.length() as usize);
            // SAFETY: the caller's promise.
            unsafe { libc::pread(fd, address, length, offset as libc::off_t) }
        }
        SystemCall::Write { file: FileRef { fd, .. }, offset, part, durable } => {
            let slice =
                libc::iovec { iov_base: part.address().cast(), iov_len: part.length() as usize };
            let flags = if durable { libc::RWF_DSYNC } else { 0 };
            // SAFETY: the caller's promise; the kernel only reads the part.
            unsafe { libc::pwritev2(fd, &slice, 1, offset as libc::off_t, flags) }
        }
        // SAFETY: no memory is involved.
        SystemCall::Sync { file } => unsafe { libc::fdatasync(file.fd) as isize },
        SystemCall::Fallocate { file, mode, offset, length } => {
            let (offset, length) = (offset as libc::off_t, length as libc::off_t);
            // SAFETY: no memory is involved.
            unsafe { libc::fallocate(file.fd, mode, offset, length) as isize }
        }
    };
    result_of(result)
}

/// Result of a system call, or its `errno` negated.
fn result_of(result: isize) -> i32 {
    match result {
        -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        result => result as i32,
    }
}

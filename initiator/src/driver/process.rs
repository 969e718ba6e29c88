//! Detection of forks: connections, locks and threads of a host cannot be used in a child process.
#![expect(unsafe_code, reason = "registers a handler with the C library")]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of forks between the process of the first host and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// Whether the handler is registered, also in an ancestor.
static COUNTS: AtomicBool = AtomicBool::new(false);

/// A process, distinguished from its children by the number of forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(u64);

/// Error of a caller in a child of the process that made the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forked;

impl Process {
    /// Registers the handler that counts forks.
    ///
    /// # Errors
    /// The system has no memory for the handler.
    pub(crate) fn count_forks() -> io::Result<()> {
        // Two threads may both register the handler, so that each fork counts twice. A thread must
        // not wait for the other: a child that is forked then would wait for a thread that it does
        // not have.
        if COUNTS.load(Ordering::Acquire) {
            return Ok(());
        }
        // SAFETY: the handler is a function of this program, and increments an atomic integer,
        // which is allowed in a child of a process with threads.
        let error = unsafe { libc::pthread_atfork(None, None, Some(forked)) };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        COUNTS.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns the process that the caller runs in, which is distinguished from its children once
    /// forks are counted.
    pub(crate) fn current() -> Self {
        Self(FORKS.load(Ordering::Relaxed))
    }

    /// Returns an error in a child of this process.
    pub(crate) fn check(self) -> Result<(), Forked> {
        if self == Self::current() { Ok(()) } else { Err(Forked) }
    }
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_not_its_parent() {
        Process::count_forks().unwrap();
        let parent = Process::current();
        assert_eq!(parent.check(), Ok(()));
        // SAFETY: the child reads an atomic integer and leaves.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = i32::from(parent.check() != Err(Forked));
            // SAFETY: ends the process, and nothing else.
            unsafe { libc::_exit(code) }
        }
        let mut status = -1;
        // SAFETY: `status` outlives the call.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status, parent.check()), (child, 0, Ok(())));
    }
}

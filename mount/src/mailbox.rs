//! Interrupts that come to one lane and concern a request of another.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// Names of requests that nobody waits for any longer, and a descriptor that wakes their lane.
#[derive(Debug)]
pub(crate) struct InterruptMailbox {
    interrupted: Mutex<Vec<u64>>,
    /// Whether there may be any: a lane looks after each turn.
    has_mail: AtomicBool,
    wake: OwnedFd,
}

impl InterruptMailbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { interrupted: Mutex::default(), has_mail: AtomicBool::new(false), wake })
    }

    /// Tells the lane that a request was interrupted, be it one of its own or not.
    pub(crate) fn interrupt(&self, unique: u64) {
        self.interrupted.lock().unwrap_or_else(PoisonError::into_inner).push(unique);
        // The counter is far from full.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        // Last, so that whoever sees it finds the descriptor to be read.
        self.has_mail.store(true, Ordering::Release);
    }

    /// The requests that were interrupted since.
    pub(crate) fn take(&self) -> Vec<u64> {
        if !self.has_mail.swap(false, Ordering::AcqRel) {
            return Vec::new();
        }
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        std::mem::take(&mut *self.interrupted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for InterruptMailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

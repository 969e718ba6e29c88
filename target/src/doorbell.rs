//! Wakes a thread that sleeps on a descriptor.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use rustix::event::EventfdFlags;

/// A flag with a descriptor that is readable while the flag is up. Ringing it twice before it is answered is
/// one system call.
#[derive(Debug)]
pub(crate) struct Doorbell {
    rung: AtomicBool,
    eventfd: OwnedFd,
}

impl Doorbell {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { rung: AtomicBool::new(false), eventfd }))
    }

    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // It can not fail: the counter is at most one.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
    }

    /// Takes the flag down; true if it was up. What was done before the ring is visible afterwards. One
    /// relaxed load while it is down.
    pub(crate) fn answer(&self) -> bool {
        if !self.rung.load(Ordering::Relaxed) {
            return false;
        }
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Before a sleep: false if the flag is up. Clears what a slow ringer left on the descriptor after its
    /// flag was taken down, which would end every sleep from then on.
    pub(crate) fn is_quiet(&self) -> bool {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        !self.rung.load(Ordering::Acquire)
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.eventfd.as_fd().as_raw_fd()
    }
}

impl Wake for Doorbell {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_readable_exactly_while_it_is_up() {
        let bell = Doorbell::new().unwrap();
        let readable = || rustix::io::read(&bell.eventfd, &mut [0; 8]).is_ok();
        assert!(!bell.answer());
        bell.ring();
        std::task::Waker::from(Arc::clone(&bell)).wake();
        assert!(bell.answer());
        assert!(!readable());
        assert!(!bell.answer());
        bell.ring();
        assert!(!bell.is_quiet());
        assert!(bell.answer());
        // A ringer that was slow: the flag is down already, and only now the descriptor is written.
        rustix::io::write(&bell.eventfd, &1u64.to_ne_bytes()).unwrap();
        assert!(bell.is_quiet());
        assert!(!readable());
        bell.ring();
        assert!(readable());
    }
}

//! Doorbells, by which a thread wakes another one that sleeps on a file descriptor.

pub(crate) mod ready_list;

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::EventfdFlags;

use crate::sync::{AtomicBool, Ordering};

/// A flag with an eventfd that is readable while the flag is set. Ringing again before
/// [`Doorbell::answer`] costs no system call.
#[derive(Debug)]
pub(crate) struct Doorbell<S = OwnedFd> {
    rung: AtomicBool,
    signal: S,
}

/// Primitive that a thread sleeps on: an eventfd, or a model of it in tests.
pub(crate) trait Signal {
    /// Wakes the thread, and ends every later sleep immediately until [`Signal::clear`].
    fn raise(&self);

    /// Resets the signal, so that the thread can sleep again.
    fn clear(&self);
}

impl Doorbell {
    pub(crate) fn new() -> std::io::Result<Arc<Self>> {
        let signal = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Self::with(signal))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.signal.as_fd().as_raw_fd()
    }
}

impl<S: Signal> Doorbell<S> {
    fn with(signal: S) -> Arc<Self> {
        Arc::new(Self { rung: AtomicBool::new(false), signal })
    }

    pub(crate) fn ring(&self) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.signal.raise();
        }
    }

    /// Clears the flag; true if it was set. What other threads wrote before they rang is then
    /// visible. Costs one relaxed load if it is clear.
    pub(crate) fn answer(&self) -> bool {
        if !self.rung.load(Ordering::Relaxed) {
            return false;
        }
        self.signal.clear();
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Whether the thread may sleep: false if the flag is set. Also clears a count that a slow
    /// ringing thread left on the eventfd after the flag was cleared, which would end every later
    /// sleep.
    pub(crate) fn is_quiet(&self) -> bool {
        self.signal.clear();
        !self.rung.load(Ordering::Acquire)
    }
}

impl Signal for OwnedFd {
    fn raise(&self) {
        // Cannot fail, since the counter is small.
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        // Fails if the counter is 0, which is fine.
        let _ = rustix::io::read(self, &mut [0; 8]);
    }
}

impl<S: Signal + Send + Sync + 'static> Wake for Doorbell<S> {
    fn wake(self: Arc<Self>) {
        self.ring();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ring();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn it_is_readable_exactly_while_it_is_up() {
        let bell = Doorbell::new().unwrap();
        let readable = || rustix::io::read(&bell.signal, &mut [0; 8]).is_ok();
        assert!(!bell.answer());
        bell.ring();
        std::task::Waker::from(Arc::clone(&bell)).wake();
        assert!(bell.answer());
        assert!(!readable());
        assert!(!bell.answer());
        bell.ring();
        assert!(!bell.is_quiet());
        assert!(bell.answer());
        // A slow ringer: the flag is cleared already, and only now the descriptor is written.
        rustix::io::write(&bell.signal, &1u64.to_ne_bytes()).unwrap();
        assert!(bell.is_quiet());
        assert!(!readable());
        bell.ring();
        assert!(readable());
    }
}

#[cfg(all(test, loom))]
pub(crate) mod loom_tests;

//! Doorbells: wake a thread that waits for a file descriptor.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Wake;

use rustix::event::EventfdFlags;

use crate::sync::{AtomicBool, Ordering};

/// Flag with a file descriptor that is readable while the flag is set. If it rings several times
/// before the thread answers, only the first time costs a system call.
#[derive(Debug)]
pub(crate) struct Doorbell<S = OwnedFd> {
    rung: AtomicBool,
    signal: S,
}

/// File descriptor, or its model in loom tests, that a thread waits for.
pub(crate) trait Signal {
    /// Wakes the thread, and ends each later wait at once until [`Signal::clear`].
    fn raise(&self);

    /// Lets later waits block again.
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

    /// Clears the flag. Returns whether it was set; then all writes before [`Doorbell::ring`] are
    /// visible. If it is clear, this costs one relaxed load.
    pub(crate) fn answer(&self) -> bool {
        if !self.rung.load(Ordering::Relaxed) {
            return false;
        }
        self.signal.clear();
        self.rung.swap(false, Ordering::AcqRel)
    }

    /// Whether the thread may wait: false if the flag is set. Also clears the descriptor, in case a
    /// slow caller of [`Doorbell::ring`] raised it after the flag was cleared, which would end
    /// every later wait.
    pub(crate) fn is_quiet(&self) -> bool {
        self.signal.clear();
        !self.rung.load(Ordering::Acquire)
    }
}

impl Signal for OwnedFd {
    fn raise(&self) {
        // The write cannot fail, since the counter is at most 1.
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    fn clear(&self) {
        // The read fails if the counter is 0.
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

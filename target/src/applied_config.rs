//! Configuration that a target currently applies.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Config, PortConfig};

/// Configuration that was applied last, with a file descriptor that signals changes.
#[derive(Debug)]
pub(crate) struct AppliedConfig {
    config: Mutex<Config>,
    /// Eventfd, incremented for each new configuration.
    changed: OwnedFd,
}

impl AppliedConfig {
    /// Creates it with the configuration at the start of the target.
    ///
    /// # Errors
    /// The eventfd cannot be created.
    pub(crate) fn new(config: Config) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { config: Mutex::new(config), changed: eventfd(0, flags)? })
    }

    pub(crate) fn get(&self) -> Config {
        self.lock().clone()
    }

    /// Configured address of the metrics page; `None` without a metrics page.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.lock().metrics
    }

    pub(crate) fn ports(&self) -> Vec<PortConfig> {
        self.lock().ports.clone()
    }

    /// Keys that `new` changes although they are read only at the start of the target.
    pub(crate) fn differences_at_start(&self, new: &Config) -> Vec<&'static str> {
        self.lock().differences_at_start(new)
    }

    pub(crate) fn set(&self, config: Config) {
        *self.lock() = config;
        self.wake();
    }

    /// Wakes the thread that waits for changes, as a new configuration does.
    pub(crate) fn wake(&self) {
        // The write fails only if the counter is full, which keeps the descriptor readable.
        let _ = rustix::io::write(&self.changed, &1_u64.to_ne_bytes());
    }

    /// File descriptor that is readable if there was a change since the last
    /// [`AppliedConfig::note_seen`].
    pub(crate) fn changed(&self) -> BorrowedFd<'_> {
        self.changed.as_fd()
    }

    pub(crate) fn note_seen(&self) {
        let _ = rustix::io::read(&self.changed, &mut [0_u8; 8]);
    }

    fn lock(&self) -> MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

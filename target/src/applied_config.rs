//! Configuration that a target currently follows.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Config, PortConfig};

/// Configuration that was applied last, with a descriptor that signals changes.
#[derive(Debug)]
pub(crate) struct AppliedConfig {
    config: Mutex<Config>,
    /// Event counter that is incremented for each new configuration.
    changed: OwnedFd,
}

impl AppliedConfig {
    /// Creates it with the configuration of the start.
    ///
    /// # Errors
    /// A descriptor is not available.
    pub(crate) fn new(config: Config) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { config: Mutex::new(config), changed: eventfd(0, flags)? })
    }

    pub(crate) fn get(&self) -> Config {
        self.lock().clone()
    }

    /// Address of the counters as an HTTP page.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.lock().metrics
    }

    /// The ports that it has.
    pub(crate) fn ports(&self) -> Vec<PortConfig> {
        self.lock().ports.clone()
    }

    /// Keys that differ in a new configuration and are read at the start only.
    pub(crate) fn differences_at_start(&self, new: &Config) -> Vec<&'static str> {
        self.lock().differences_at_start(new)
    }

    pub(crate) fn set(&self, config: Config) {
        *self.lock() = config;
        self.wake();
    }

    /// Wakes the waiting thread, as a new configuration does.
    pub(crate) fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.changed, &1_u64.to_ne_bytes());
    }

    /// Descriptor that is readable if there is a new configuration since the last call of
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

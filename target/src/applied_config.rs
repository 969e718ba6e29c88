//! The configuration that a target follows.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Config, PortConfig};

/// The configuration that was applied last. It can be waited for.
#[derive(Debug)]
pub(crate) struct AppliedConfig {
    config: Mutex<Config>,
    /// Counts up when there is another.
    changed: OwnedFd,
}

impl AppliedConfig {
    /// The configuration of the start.
    ///
    /// # Errors
    /// There is no descriptor to be had.
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

    /// The keys that are others in a new configuration, of those that are read at the start only.
    pub(crate) fn differences_at_start(&self, new: &Config) -> Vec<&'static str> {
        self.lock().differences_at_start(new)
    }

    pub(crate) fn set(&self, config: Config) {
        *self.lock() = config;
        self.wake();
    }

    /// Wakes who waits, as another configuration does.
    pub(crate) fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.changed, &1_u64.to_ne_bytes());
    }

    /// Readable when there is another configuration since the last call of
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

//! Reads the configuration again while the target runs.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::config::{Config, ConfigError, PortConfig};
use crate::inventory::export::OpenPurpose;
use crate::inventory::reload::{ExportChange, ReloadError};
use crate::listeners::Listeners;

/// Where the configuration comes from.
pub(crate) struct ConfigSource {
    /// The file that it is read from.
    pub(crate) path: PathBuf,
    /// Reads it, with what the command line says besides.
    pub(crate) read: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
}

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

/// Makes the target follow the configuration when an operator asks for it.
pub(crate) struct Reloader {
    listeners: Arc<Listeners>,
    source: ConfigSource,
}

/// What came of a reload.
#[derive(Debug)]
pub(crate) struct ReloadReport {
    pub(crate) changes: Vec<ExportChange>,
    /// What did not end well with namespaces that are gone, each in one line.
    pub(crate) warnings: Vec<String>,
}

impl Reloader {
    pub(crate) fn new(listeners: Arc<Listeners>, source: ConfigSource) -> Self {
        Self { listeners, source }
    }

    /// The path of the configuration file.
    pub(crate) fn path(&self) -> &Path {
        &self.source.path
    }

    /// The text of the configuration file, and what it says.
    ///
    /// # Errors
    /// The file can not be read, or is wrong.
    pub(crate) fn read_file(&self) -> Result<(String, Config), ConfigError> {
        let read = |error| ConfigError::Read { path: self.path().to_owned(), error };
        let text = std::fs::read_to_string(self.path()).map_err(read)?;
        Ok((text, (self.source.read)()?))
    }

    /// Reads the configuration, exports what it says, and listens where it says. With
    /// [`OpenPurpose::Check`] nothing changes, and the changes are those that would be made.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing changes then.
    pub(crate) fn reload(&self, purpose: OpenPurpose) -> Result<ReloadReport, ReloadError> {
        self.listeners.reload((self.source.read)()?, purpose)
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reloader")
    }
}

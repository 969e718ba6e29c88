//! Reads the configuration again while the target runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, ConfigError};
use crate::inventory::export::OpenPurpose;
use crate::inventory::reload::{ReloadError, ReloadReport};
use crate::listeners::Listeners;

/// Where the configuration comes from.
pub(crate) struct ConfigSource {
    /// The file that it is read from.
    pub(crate) path: PathBuf,
    /// Reads it, with what the command line says besides.
    pub(crate) read: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
}

/// Makes the target follow the configuration when an operator asks for it.
pub(crate) struct Reloader {
    listeners: Arc<Listeners>,
    source: ConfigSource,
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

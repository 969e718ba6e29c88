//! Reloads the configuration at run time.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, ConfigError};
use crate::inventory::export::OpenPurpose;
use crate::inventory::reload::{ReloadError, ReloadReport};
use crate::listeners::Listeners;

/// Source of the configuration.
pub(crate) struct ConfigSource {
    /// File that it is read from.
    pub(crate) path: PathBuf,
    /// Reads it, and adds the options of the command line.
    pub(crate) read: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
}

/// Reloads the configuration on an operator's request.
pub(crate) struct Reloader {
    listeners: Arc<Listeners>,
    source: ConfigSource,
}

impl Reloader {
    pub(crate) fn new(listeners: Arc<Listeners>, source: ConfigSource) -> Self {
        Self { listeners, source }
    }

    /// Path of the configuration file.
    pub(crate) fn path(&self) -> &Path {
        &self.source.path
    }

    /// Text of the configuration file, and the configuration that it describes.
    ///
    /// # Errors
    /// The file cannot be read, or is wrong.
    pub(crate) fn read_file(&self) -> Result<(String, Config), ConfigError> {
        let read = |error| ConfigError::Read { path: self.path().to_owned(), error };
        let text = std::fs::read_to_string(self.path()).map_err(read)?;
        Ok((text, (self.source.read)()?))
    }

    /// Reads the configuration and applies it to exports and listeners. With [`OpenPurpose::Check`]
    /// nothing changes, and the report has the changes that would be made.
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

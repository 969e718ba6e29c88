//! Reload of the configuration file at run time.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, ConfigError};
use crate::inventory::error::ReloadError;
use crate::inventory::open::OpenPurpose;
use crate::inventory::report::EditReport;
use crate::listeners::Listeners;

/// Configuration file, and how to read it.
pub(crate) struct ConfigSource {
    pub(crate) path: PathBuf,
    /// Function that reads the file and applies the options of the command line.
    pub(crate) read: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
}

/// Reloads the configuration file on SIGHUP or by `feedrail_reload_config`.
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

    /// Reads the configuration file. Returns its text and the configuration that it describes.
    ///
    /// # Errors
    /// The file cannot be read or is invalid.
    pub(crate) fn read_file(&self) -> Result<(String, Config), ConfigError> {
        let read = |error| ConfigError::Read { path: self.path().to_owned(), error };
        let text = crate::confinement::read_to_string(self.path()).map_err(read)?;
        Ok((text, (self.source.read)()?))
    }

    /// Reads the configuration file and applies it to exports and listeners. With
    /// [`OpenPurpose::Check`], the report has the changes that would be made.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing has changed then.
    pub(crate) fn reload(&self, purpose: OpenPurpose) -> Result<EditReport, ReloadError> {
        self.listeners.reload((self.source.read)()?, purpose)
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reloader")
    }
}

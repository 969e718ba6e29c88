//! Reads the configuration again while the target runs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, ConfigError};
use crate::controller::Associations;
use crate::inventory::export::OpenPurpose;
use crate::inventory::reload::{ExportChange, ReloadError};

/// Where the configuration comes from.
pub(crate) struct ConfigSource {
    /// The file that it is read from.
    pub(crate) path: PathBuf,
    /// Reads it, with what the command line says besides.
    pub(crate) read: Box<dyn Fn() -> Result<Config, ConfigError> + Send + Sync>,
}

/// Makes the exports follow the configuration when an operator asks for it.
pub(crate) struct Reloader {
    associations: Arc<Associations>,
    /// As it was at the start.
    started: Config,
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
    pub(crate) fn new(
        associations: Arc<Associations>,
        started: Config,
        source: ConfigSource,
    ) -> Self {
        Self { associations, started, source }
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

    /// Reads the configuration, and exports what it says. With [`OpenPurpose::Check`] nothing
    /// changes, and the changes are those that would be made.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing changes then.
    pub(crate) fn reload(&self, purpose: OpenPurpose) -> Result<ReloadReport, ReloadError> {
        let config = (self.source.read)()?;
        let differences = self.started.differences_at_start(&config);
        if !differences.is_empty() {
            return Err(ReloadError::AtStart(differences));
        }
        self.associations.reload(&config, purpose)
    }
}

impl fmt::Debug for Reloader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reloader")
    }
}

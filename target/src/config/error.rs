//! Reasons that a configuration is refused.

use std::io;
use std::path::PathBuf;

use crate::derived_ids::MachineError;

/// Reason that a configuration is refused: one line with the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read the configuration: {error}", path.display())]
    Read {
        /// Path of the configuration.
        path: PathBuf,
        /// Error of the system call.
        error: io::Error,
    },
    /// A value, key or table is wrong.
    #[error("{}:{line}:{column}: {key}: {message}", path.display())]
    Invalid {
        /// Path of the configuration.
        path: PathBuf,
        /// Line of the value or key, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// Table and key, as in `subsystem.namespace.nsid`.
        key: String,
        /// The mistake, and a value that would be right.
        message: String,
    },
    /// Names and ids cannot be derived, because the id of the machine cannot be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The command line is wrong, or two ports conflict; the text says how.
    #[error("{0}")]
    Usage(String),
}

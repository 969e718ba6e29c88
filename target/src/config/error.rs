//! Why a configuration was refused.

use std::io;
use std::path::PathBuf;

use crate::derived_ids::MachineError;

/// The cause for which a configuration was refused: one line with the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file itself can not be read.
    #[error("{}: cannot read the configuration: {error}", path.display())]
    Read {
        /// The path of the configuration.
        path: PathBuf,
        /// The error of the system call.
        error: io::Error,
    },
    /// A value, key or table is wrong.
    #[error("{}:{line}:{column}: {key}: {message}", path.display())]
    Invalid {
        /// The path of the configuration.
        path: PathBuf,
        /// Line of the value or key, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// The table and key, as in `subsystem.namespace.nsid`.
        key: String,
        /// The mistake, and a value that would be right.
        message: String,
    },
    /// Names and ids would follow from a machine that is not known.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
}

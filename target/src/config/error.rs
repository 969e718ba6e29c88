//! Why a configuration was refused.

use std::io;
use std::path::PathBuf;

use crate::derived_ids::MachineError;

/// Why a configuration was refused: one line that says where and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file itself can not be read.
    #[error("{}: cannot read the configuration: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A value, key or table is wrong.
    #[error("{}:{line}:{column}: {key}: {message}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in bytes, from 1.
        column: usize,
        /// The table and key, as in `subsystem.namespace.nsid`.
        key: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// Names and ids would follow from a machine that is not known.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
}

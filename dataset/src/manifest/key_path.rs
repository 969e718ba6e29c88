//! Paths of key files in a manifest.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::Name;
use crate::text::as_text;

/// Absolute path of a file that each host has, with a secret of in-band authentication. The secret
/// itself is not in a manifest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyPath(Name);

as_text!(KeyPath);

impl KeyPath {
    /// Returns the path as one of this machine.
    pub fn as_path(&self) -> &Path {
        Path::new(self.0.as_str())
    }
}

impl FromStr for KeyPath {
    type Err = InvalidKeyPath;

    fn from_str(path: &str) -> Result<Self, InvalidKeyPath> {
        let name = path.starts_with('/').then(|| path.parse().ok()).flatten();
        // The text is not repeated, since it may be a key.
        name.map(Self).ok_or(InvalidKeyPath)
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Error: a text is not the path of a key file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a manifest names the file of a key, by its absolute path, and never the key")]
pub struct InvalidKeyPath;

//! Names of checkpoints and of their entries.

use crate::error::VolumeFormatError;

/// Length of the longest name, in bytes.
const NAME_MAX: usize = 1024;

/// A name of 1 to 1024 bytes of UTF-8 without control characters and `/`, neither `.` nor `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointName(String);

impl CheckpointName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`VolumeFormatError::Name`].
    pub fn new(name: &str) -> Result<Self, VolumeFormatError> {
        let is_good = name.len() <= NAME_MAX && is_component(name);
        if is_good {
            Ok(Self(name.to_owned()))
        } else {
            Err(VolumeFormatError::Name(name.to_owned()))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A path of names with `/` between them, at most 1024 bytes long.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryName(String);

impl EntryName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`VolumeFormatError::Name`].
    pub fn new(name: &str) -> Result<Self, VolumeFormatError> {
        let is_good = name.len() <= NAME_MAX && name.split('/').all(is_component);
        if is_good {
            Ok(Self(name.to_owned()))
        } else {
            Err(VolumeFormatError::Name(name.to_owned()))
        }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_component(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(|c: char| c == '/' || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "a\nb", "a/b", "\0"] {
            CheckpointName::new(name).unwrap_err();
        }
        for name in ["", "/a", "a/", "a//b", "a/../b", "a\tb"] {
            EntryName::new(name).unwrap_err();
        }
        EntryName::new("rank0/model.0").unwrap();
        EntryName::new(&"a".repeat(1025)).unwrap_err();
    }
}

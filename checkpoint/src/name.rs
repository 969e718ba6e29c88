//! Names of checkpoints and of their entries.

use crate::error::VolumeFormatError;

/// Maximum length of a name, in bytes.
const NAME_MAX: usize = 1024;

/// Name of a checkpoint: 1 to 1024 bytes of UTF-8 without control characters and `/`, and neither
/// `.` nor `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckpointName(String);

impl CheckpointName {
    /// Parses the name of a checkpoint.
    ///
    /// # Errors
    /// [`VolumeFormatError::Name`] if the name breaks a rule.
    pub fn new(name: &str) -> Result<Self, VolumeFormatError> {
        let is_good = name.len() <= NAME_MAX && is_component(name);
        if is_good {
            Ok(Self(name.to_owned()))
        } else {
            Err(VolumeFormatError::Name(name.to_owned()))
        }
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the number at the end of the name, 0 without one: the training step of a
    /// checkpoint that is made by its first file.
    pub fn step(&self) -> u64 {
        let digits = self.0.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        self.0[digits..].parse().unwrap_or(0)
    }
}

/// Name of an entry: parts with `/` between them, each as in a [`CheckpointName`], at most 1024
/// bytes together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryName(String);

impl EntryName {
    /// Parses the name of an entry.
    ///
    /// # Errors
    /// [`VolumeFormatError::Name`] if the name or a part of it breaks a rule.
    pub fn new(name: &str) -> Result<Self, VolumeFormatError> {
        let is_good = name.len() <= NAME_MAX && name.split('/').all(is_component);
        if is_good {
            Ok(Self(name.to_owned()))
        } else {
            Err(VolumeFormatError::Name(name.to_owned()))
        }
    }

    /// Returns the name as text.
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
        let step = |name| CheckpointName::new(name).unwrap().step();
        assert_eq!([step("step-1200"), step("7"), step("step"), step("9x")], [1200, 7, 0, 0]);
        assert_eq!(step(&"9".repeat(30)), 0);
        EntryName::new("rank0/model.0").unwrap();
        EntryName::new(&"a".repeat(1025)).unwrap_err();
    }
}

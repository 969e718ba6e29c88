//! Selections: the entries of a checkpoint that a change removes or renames.

use std::fmt::{self, Display, Formatter};

use crate::error::VolumeFormatError;
use crate::name::EntryName;

/// Entries of a checkpoint that a change removes or renames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntrySelection {
    /// The checkpoint itself, with all its entries.
    Whole,
    /// The entry of this name.
    Entry(EntryName),
    /// All entries whose names have these parts, and more behind them.
    Folder(EntryName),
}

impl EntrySelection {
    /// Parses a name of an entry, or the name of a folder with `/` behind it. `None` is the whole
    /// checkpoint.
    ///
    /// # Errors
    /// [`VolumeFormatError::Name`] if the name breaks a rule.
    pub fn parse(text: Option<&str>) -> Result<Self, VolumeFormatError> {
        Ok(match text {
            None => Self::Whole,
            Some(text) => match text.strip_suffix('/') {
                Some(folder) => Self::Folder(EntryName::new(folder)?),
                None => Self::Entry(EntryName::new(text)?),
            },
        })
    }

    /// Returns what the names of the entries begin with.
    pub(crate) fn beginning(&self) -> String {
        match self {
            Self::Whole => String::new(),
            Self::Entry(name) => name.as_str().to_owned(),
            Self::Folder(name) => format!("{}/", name.as_str()),
        }
    }

    /// Whether an entry is selected.
    pub fn has(&self, entry: &EntryName) -> bool {
        match self {
            Self::Whole => true,
            Self::Entry(name) => name == entry,
            Self::Folder(_) => entry.as_str().starts_with(&self.beginning()),
        }
    }
}

impl Display for EntrySelection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.beginning())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_end_with_a_slash() {
        let name = |text| EntryName::new(text).unwrap();
        let folder = EntrySelection::parse(Some("a/b/")).unwrap();
        assert_eq!(folder, EntrySelection::Folder(name("a/b")));
        assert!(folder.has(&name("a/b/c")) && !folder.has(&name("a/bc")));
        assert!(!folder.has(&name("a/b")));
        assert_eq!(EntrySelection::parse(Some("a")).unwrap(), EntrySelection::Entry(name("a")));
        for text in ["", "/", "a//", "../", "a/./b"] {
            EntrySelection::parse(Some(text)).unwrap_err();
        }
    }
}

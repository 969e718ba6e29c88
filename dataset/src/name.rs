//! Names of data sets, targets and shards.

use std::fmt;
use std::str::FromStr;

use nvme_proto::identify::MAX_NAME_BYTES;

use crate::text::as_text;

/// Name of a data set, target or shard: UTF-8 without control characters, from 1 byte to 3,680
/// bytes, which is the longest name of a namespace that a Feedrail target can report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

as_text!(Name);

impl Name {
    /// Returns the name, unescaped.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a namespace that tells none, or none that can be used where it is shown.
    pub fn of_nameless(number: u32) -> Self {
        Self(format!("namespace-{number}"))
    }
}

impl FromStr for Name {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        match name {
            "" => Err(InvalidName::Empty),
            _ if name.len() > MAX_NAME_BYTES => Err(InvalidName::TooLong),
            _ if name.chars().any(char::is_control) => Err(InvalidName::ControlCharacter),
            _ => Ok(Self(name.to_owned())),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Rule for a [`Name`] that a text breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// The text is empty.
    #[error("a name must not be empty")]
    Empty,
    /// The text exceeds the longest name that a target can report.
    #[error("a name has at most {MAX_NAME_BYTES} bytes")]
    TooLong,
    /// The text contains a control character.
    #[error("a name must not contain control characters")]
    ControlCharacter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_bounds() {
        let parsed = |name: &str| name.parse::<Name>().map(|name| name.to_string());
        assert_eq!(parsed("train/000 ä.tar"), Ok("train/000 ä.tar".to_owned()));
        assert_eq!(parsed(""), Err(InvalidName::Empty));
        assert!(parsed(&"n".repeat(3680)).is_ok());
        assert_eq!(parsed(&"n".repeat(3681)), Err(InvalidName::TooLong));
        assert_eq!(parsed("a\u{9b}b"), Err(InvalidName::ControlCharacter));
        assert_eq!(parsed("a\n"), Err(InvalidName::ControlCharacter));
    }
}

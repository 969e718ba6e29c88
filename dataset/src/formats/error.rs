//! Why a shard is not what its format says.

use std::io;

/// An error in a shard, and its position.
#[derive(Debug, thiserror::Error)]
#[error("shard {shard}, offset {offset}: {problem}")]
pub struct FormatError {
    /// The number of the shard, as the caller counts them.
    pub shard: u32,
    /// The byte of the shard where the error begins.
    pub offset: u64,
    /// The error: the expected and the found content.
    pub problem: FormatProblem,
}

/// An error in a shard.
#[derive(Debug, thiserror::Error)]
pub enum FormatProblem {
    /// The shard ends too early, or a length in it is too large.
    #[error("expected {length} bytes of {expected}, but the shard ends at {end}")]
    Truncated {
        /// Name of the part that the bytes should hold.
        expected: &'static str,
        /// How many bytes that should have.
        length: u64,
        /// How many bytes the shard has.
        end: u64,
    },
    /// The bytes are something else.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// Content that the format requires.
        expected: &'static str,
        /// Content of the shard.
        found: String,
    },
    /// The shard is valid, but no range of its bytes is a sample.
    #[error("{what} cannot be indexed: {remedy}")]
    Unsupported {
        /// The part of the format that cannot be indexed.
        what: String,
        /// Advice to the user.
        remedy: &'static str,
    },
    /// The bytes do not have the checksum that the shard has for them.
    #[error("the CRC-32C of {of} is {computed:#010x}, but the shard says {stored:#010x}")]
    Checksum {
        /// Part of the shard that the checksum covers.
        of: &'static str,
        /// The checksum that the shard has.
        stored: u32,
        /// The checksum that the bytes have.
        computed: u32,
    },
    /// The sample is longer than an index can say.
    #[error("a sample of {length} bytes: an index has room for 4294967295")]
    TooLong {
        /// How many bytes it has.
        length: u64,
    },
    /// The bytes cannot be read.
    #[error("the shard cannot be read: {0}")]
    Read(io::Error),
}

impl FormatProblem {
    /// The bytes are something else than `expected`.
    pub(super) fn unexpected(expected: &'static str, found: impl ToString) -> Self {
        Self::Unexpected { expected, found: printable(&found.to_string()) }
    }
}

/// Text of a shard as an error shows it: without control characters, which would change what a
/// terminal shows, and not all of a long one.
pub(super) fn printable(text: &str) -> String {
    const SHOWN: usize = 300;
    let mut shown = String::new();
    for letter in text.chars().take(SHOWN) {
        match letter.is_control() {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        shown += "...";
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_text_of_a_shard_as_text() {
        let found = |text: &str| FormatProblem::unexpected("a name", text).to_string();
        assert_eq!(found("größe 1"), "expected a name, found größe 1");
        assert_eq!(found("a\0\u{1b}[2J\u{9b}"), "expected a name, found a\\u{0}\\u{1b}[2J\\u{9b}");
        let long = found(&"ä".repeat(1_000_000));
        assert!(long.len() < 700 && long.ends_with("ä..."), "{long}");
    }
}

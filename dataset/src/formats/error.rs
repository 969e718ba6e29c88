//! Errors in the contents of a shard.

use std::io;

/// Error in a shard, with its position.
#[derive(Debug, thiserror::Error)]
#[error("shard {shard}, offset {offset}: {problem}")]
pub struct FormatError {
    /// Number of the shard that the caller gave to `ShardBytes::new`.
    pub shard: u32,
    /// Offset in the shard, in bytes, at which the error begins.
    pub offset: u64,
    /// Kind of error, with what was expected and what was found.
    pub problem: FormatProblem,
}

/// Kind of error in a shard.
#[derive(Debug, thiserror::Error)]
pub enum FormatProblem {
    /// The shard ends too early, or a length in it is too large.
    #[error("expected {length} bytes of {expected}, but the shard ends at {end}")]
    Truncated {
        /// Name of the part that the bytes should hold.
        expected: &'static str,
        /// Bytes that the part should have.
        length: u64,
        /// Size of the shard in bytes.
        end: u64,
    },
    /// The shard contains something other than the format requires.
    #[error("expected {expected}, found {found}")]
    Unexpected {
        /// Content that the format requires.
        expected: &'static str,
        /// Content of the shard.
        found: String,
    },
    /// The shard is valid, but its samples are no ranges of its bytes, for example since they are
    /// compressed.
    #[error("{what} cannot be indexed: {remedy}")]
    Unsupported {
        /// The part of the format that cannot be indexed.
        what: String,
        /// Advice to the user.
        remedy: &'static str,
    },
    /// The checksum stored in the shard does not match the data.
    #[error("the CRC-32C of {of} is {computed:#010x}, but the shard says {stored:#010x}")]
    Checksum {
        /// Part of the shard that the checksum covers.
        of: &'static str,
        /// Checksum in the shard.
        stored: u32,
        /// Checksum of the data that was read.
        computed: u32,
    },
    /// A sample is longer than an index can represent (4 GiB - 1).
    #[error("a sample of {length} bytes: an index has room for 4294967295")]
    TooLong {
        /// Bytes of the sample.
        length: u64,
    },
    /// The shard could not be read.
    #[error("the shard cannot be read: {0}")]
    Read(io::Error),
}

impl FormatProblem {
    /// Creates a [`FormatProblem::Unexpected`] with `found` made printable.
    pub(super) fn unexpected(expected: &'static str, found: impl ToString) -> Self {
        Self::Unexpected { expected, found: printable(&found.to_string()) }
    }
}

/// Escapes the control characters of a shard's text, which could drive a terminal, and limits it to
/// 300 characters.
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

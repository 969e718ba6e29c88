//! Text of a configuration file, with positions for error messages.

use std::path::{Path, PathBuf};

use super::{ConfigError, Origin};

/// Text and path of a configuration file.
pub(super) struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    /// Byte offset of the start of each line.
    lines: Vec<usize>,
}

impl<'a> Document<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        let after = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self { path, text, lines: std::iter::once(0).chain(after).collect() }
    }

    /// Creates an error about the text at a byte offset. Control characters in `message` are
    /// escaped, so that it takes one line.
    pub(super) fn error(&self, offset: usize, message: impl AsRef<str>) -> ConfigError {
        self.invalid(offset, self.key_at(offset), message.as_ref())
    }

    fn invalid(&self, offset: usize, key: String, message: &str) -> ConfigError {
        let (line, column) = self.line_and_column(offset);
        let path = self.path.to_owned();
        ConfigError::Invalid { path, line, column, key, message: in_one_line(message) }
    }

    /// Creates an error from one of the TOML parser. A wrong table header and a key without a value
    /// get messages of their own.
    pub(super) fn refusal(&self, error: &toml::de::Error) -> ConfigError {
        if let Some((offset, message)) = self.wrong_header() {
            return self.error(offset, message);
        }
        let offset = error.span().map_or(0, |span| span.start);
        if let Some(key) = self.key_without_value(offset) {
            let message = format!("no `=` follows the key; write {key} = VALUE");
            return self.invalid(offset, key.to_owned(), &message);
        }
        self.error(offset, error.message().trim_end().replace('\n', ", "))
    }

    /// Byte offset of the first table header that is similar but not equal to one of [`TABLES`],
    /// and a message with the right one.
    fn wrong_header(&self) -> Option<(usize, String)> {
        self.lines.iter().find_map(|start| {
            let line = self.text[*start..].lines().next().unwrap_or_default();
            let written = line.trim();
            let name = header(written)?;
            let right = meant(name)?;
            let brackets = |header: &str| header.bytes().take_while(|byte| *byte == b'[').count();
            let wrong = brackets(written) != brackets(right.header) || name != right.name;
            let at = start + line.len() - line.trim_start().len();
            wrong.then(|| (at, format!("write {} here: {}", right.header, right.reason)))
        })
    }

    /// Key at the start of the line at a byte offset, if the line has no `=`.
    fn key_without_value(&self, offset: usize) -> Option<&str> {
        let (line, _) = self.line_and_column(offset);
        let text = self.text[self.lines[line - 1]..].lines().next()?.trim();
        let word = text.split_whitespace().next()?;
        let is_key =
            word.starts_with(|c: char| c.is_ascii_lowercase()) && word.chars().all(is_bare);
        // The lines of a list have quotes or digits.
        (is_key && !text.contains('=') && !matches!(word, "true" | "false")).then_some(word)
    }

    /// Place of the text at a byte offset, for messages after parsing.
    pub(super) fn origin(&self, offset: usize) -> Origin {
        let (line, _) = self.line_and_column(offset);
        Origin(format!("{}:{line}: {}", self.path.display(), self.key_at(offset)))
    }

    /// Resolves a path relative to the folder of the file.
    pub(super) fn resolve(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Line and column in bytes, both counted from 1.
    fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let offset = self.before(offset).len();
        let line = self.lines.partition_point(|start| *start <= offset);
        // The first line begins at 0, so there is always one before.
        (line, offset - self.lines[line - 1] + 1)
    }

    /// Text up to `offset`, or up to the character boundary before it.
    fn before(&self, offset: usize) -> &str {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        &self.text[..end]
    }

    /// Dotted key around an offset: the last `key =` at or above its line, under the last table
    /// header. A value that spans lines belongs to the key above it.
    fn key_at(&self, offset: usize) -> String {
        let start = self.before(offset).len();
        let line_end = self.text[start..].find('\n').map_or(self.text.len(), |n| start + n);
        let mut key = None;
        for line in self.text[..line_end].lines().rev() {
            let line = line.trim();
            if let Some(table) = header(line) {
                return key.map_or_else(|| table.to_owned(), |key| format!("{table}.{key}"));
            }
            if key.is_none() {
                key = bare_key(line);
            }
        }
        key.unwrap_or("configuration").to_owned()
    }
}

/// Message with control characters escaped.
fn in_one_line(message: &str) -> String {
    let visible = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    message.chars().map(visible).collect()
}

fn header(line: &str) -> Option<&str> {
    let inner = line.strip_prefix('[')?.split(']').next()?;
    let name = inner.trim_start_matches('[').trim();
    // An element of a multi-line array may start with a bracket too; a table name has no quotes or
    // commas.
    (!name.is_empty() && !name.contains(['"', ','])).then_some(name)
}

fn bare_key(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim();
    (!key.is_empty() && key.chars().all(is_bare)).then_some(key)
}

fn is_bare(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// A table that a configuration may have, with its correct header and the reason for its brackets.
struct TableRules {
    name: &'static str,
    header: &'static str,
    reason: &'static str,
}

const SEVERAL: &str = "there may be several, so brackets are double";
const PART: &str = "it is part of the [[subsystem]] above it, and there may be several";

const TABLES: [TableRules; 6] = [
    TableRules {
        name: "limits",
        header: "[limits]",
        reason: "there is one, so brackets are single",
    },
    TableRules { name: "port", header: "[[port]]", reason: SEVERAL },
    TableRules { name: "subsystem", header: "[[subsystem]]", reason: SEVERAL },
    TableRules { name: "subsystem.namespace", header: "[[subsystem.namespace]]", reason: PART },
    TableRules { name: "subsystem.directory", header: "[[subsystem.directory]]", reason: PART },
    TableRules {
        name: "subsystem.namespace.faults",
        header: "[subsystem.namespace.faults]",
        reason: "it is part of the [[subsystem.namespace]] above it",
    },
];

/// Table whose name has the same last part as `name`, or as `name` without a final `s`.
fn meant(name: &str) -> Option<&'static TableRules> {
    let last = |name: &'_ str| name.rsplit('.').next().unwrap_or_default().trim().to_owned();
    let written = last(name);
    TABLES.iter().find(|table| {
        let known = last(table.name);
        written == known || written.strip_suffix('s') == Some(known.as_str())
    })
}

//! The text of a configuration file, to say where something stands in it.

use std::path::{Path, PathBuf};

use super::{ConfigError, Origin};

/// A configuration file's text and name.
pub(super) struct Document<'a> {
    path: &'a Path,
    text: &'a str,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl<'a> Document<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        let after = text.match_indices('\n').map(|(newline, _)| newline + 1);
        Self { path, text, lines: std::iter::once(0).chain(after).collect() }
    }

    /// An error about what stands at a byte offset: one line, whatever the values are that it quotes.
    pub(super) fn error(&self, offset: usize, message: impl AsRef<str>) -> ConfigError {
        let (line, column) = self.line_and_column(offset);
        ConfigError::Invalid {
            path: self.path.to_owned(),
            line,
            column,
            key: self.key_at(offset),
            message: in_one_line(message.as_ref()),
        }
    }

    /// The place for later messages about what stands at a byte offset.
    pub(super) fn origin(&self, offset: usize) -> Origin {
        let (line, _) = self.line_and_column(offset);
        Origin(format!("{}:{line}: {}", self.path.display(), self.key_at(offset)))
    }

    /// A path relative to the folder of the file.
    pub(super) fn resolve(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Both from 1.
    fn line_and_column(&self, offset: usize) -> (usize, usize) {
        let offset = self.before(offset).len();
        let line = self.lines.partition_point(|start| *start <= offset);
        // The first line begins at 0, so there is always one before.
        (line, offset - self.lines[line - 1] + 1)
    }

    /// The text up to `offset`, or up to the character boundary before it.
    fn before(&self, offset: usize) -> &str {
        let mut end = offset.min(self.text.len());
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        &self.text[..end]
    }

    /// The dotted key around an offset: the last `key =` at or above its line, under the last table header.
    /// A value that spans lines belongs to the key above it.
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

/// The same with control characters as one would write them.
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
    // An element of a multi-line array may start with a bracket too; a table name has no quotes or commas.
    (!name.is_empty() && !name.contains(['"', ','])).then_some(name)
}

fn bare_key(line: &str) -> Option<&str> {
    let (key, _) = line.split_once('=')?;
    let key = key.trim();
    let bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    (!key.is_empty() && key.chars().all(bare)).then_some(key)
}

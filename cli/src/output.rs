//! Functions that write to stdout and stderr.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::closed_stdout::stdout_was_closed;

/// Error: the reader of stdout closed the pipe, which is not reported as a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reader of the output is gone")]
pub(crate) struct ReaderGone;

/// Fails if stdout is closed, so that output would be lost.
pub(crate) fn check_stdout() -> Result<()> {
    ensure!(!stdout_was_closed(), "cannot write to stdout: it is closed");
    Ok(())
}

/// Writes a text to stdout.
pub(crate) fn print(text: &str) -> Result<()> {
    check_stdout()?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// Writes a line to stderr. An error is ignored: there is no other place to report it.
pub(crate) fn note(line: impl Display) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Error for a failed write to stdout: [`ReaderGone`] if the pipe was closed.
pub(crate) fn stdout_error(error: io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => ReaderGone.into(),
        _ => anyhow::Error::new(error).context("cannot write to stdout"),
    }
}

/// Formats JSON with the indentation of nvme-cli and a final newline.
pub(crate) fn json(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Formats rows as columns, each as wide as its widest cell, under a heading.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heading[column].len()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..heading.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells.zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text = line(&mut heading.iter().copied());
    for row in rows {
        text += &line(&mut row.iter().map(String::as_str));
    }
    text
}

/// Escapes the control characters in a peer's text, which could drive a terminal.
pub(crate) fn printable(text: &str) -> String {
    let escape = |letter: char| {
        if letter.is_control() { letter.escape_default().to_string() } else { letter.to_string() }
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [vec!["1".into(), "long cell".into()], vec!["10".into(), String::new()]];
        assert_eq!(table(&["id", "name"], &rows), "id  name\n1   long cell\n10\n");
    }

    #[test]
    fn control_characters_are_escaped_and_others_kept() {
        assert_eq!(printable("größe\u{1b}[2J\n"), "größe\\u{1b}[2J\\n");
    }
}

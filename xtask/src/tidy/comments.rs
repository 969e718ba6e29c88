//! Finds the comments of Rust files, line by line.

use crate::source::SourceFile;

/// Maximum columns of a line with a comment, equal to `max_width` in rustfmt.toml.
const COLUMNS_MAX: usize = 100;

/// Comment on one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comment<'a> {
    /// Number of the line, from 1.
    pub(super) line: usize,
    /// Text of the comment, slashes included.
    pub(super) text: &'a str,
}

/// Returns a complaint for each comment that exceeds [`COLUMNS_MAX`].
pub(super) fn complaints(sources: &[SourceFile]) -> Vec<String> {
    let in_file = |source: &SourceFile| {
        let at = |line| format!("{}:{line}: a comment behind column {COLUMNS_MAX}", source.path);
        wide_lines(&source.text).into_iter().map(at).collect::<Vec<_>>()
    };
    sources.iter().flat_map(in_file).collect()
}

/// Numbers of the lines whose comment exceeds [`COLUMNS_MAX`].
fn wide_lines(text: &str) -> Vec<usize> {
    let lines: Vec<_> = text.lines().collect();
    let mut wide: Vec<_> = comments(text).iter().map(|comment| comment.line).collect();
    wide.retain(|line| lines[line - 1].chars().count() > COLUMNS_MAX);
    wide
}

/// Returns all comments in order, one for each line. ` // ` in a string literal counts, too.
pub(super) fn comments(text: &str) -> Vec<Comment<'_>> {
    let lines = text.lines().enumerate();
    let found =
        lines.filter_map(|(index, line)| Some(Comment { line: index + 1, text: comment(line)? }));
    found.collect()
}

/// Returns the comment that a line consists of or ends with.
fn comment(line: &str) -> Option<&str> {
    let whole = line.trim_start();
    if whole.starts_with("//") { Some(whole) } else { Some(&line[line.find(" // ")? + 1..]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_found_beside_code() {
        let text = "//! a\nlet x = 1; // b\n    /// c\nlet url = \"nvmf://d\";\nf()";
        let found = comments(text).into_iter().map(|comment| (comment.line, comment.text));
        assert_eq!(found.collect::<Vec<_>>(), [(1, "//! a"), (2, "// b"), (3, "/// c")]);
    }

    #[test]
    fn only_comments_can_be_wide() {
        let comment = |columns: usize| format!("// {}\n", "ä".repeat(columns - 3));
        assert_eq!(wide_lines(&comment(COLUMNS_MAX)), [0; 0]);
        assert_eq!(wide_lines(&format!("\n{}", comment(COLUMNS_MAX + 1))), [2]);
        assert_eq!(wide_lines(&format!("\"{}\"\n", "a".repeat(200))), [0; 0]);
    }
}

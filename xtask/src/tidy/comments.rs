//! Comments of Rust files, line by line.

use crate::source::SourceFile;

/// Columns that a line with a comment may have, as `max_width` of rustfmt.toml gives code.
const COLUMNS_MAX: usize = 100;

/// The part of a comment that is on one line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comment<'a> {
    /// Lines are counted from 1.
    pub(super) line: usize,
    /// The text begins with the slashes if the comment begins on this line.
    pub(super) text: &'a str,
}

/// Each line that a comment makes too wide.
pub(super) fn offenders(sources: &[SourceFile]) -> Vec<String> {
    let in_file = |source: &SourceFile| {
        let at = |line| format!("{}:{line}", source.path);
        wide_lines(&source.text).into_iter().map(at).collect::<Vec<_>>()
    };
    sources.iter().flat_map(in_file).collect()
}

/// Lines on which a comment ends behind the last column.
fn wide_lines(text: &str) -> Vec<usize> {
    let lines: Vec<_> = text.lines().collect();
    let mut wide: Vec<_> = comments(text).iter().map(|comment| comment.line).collect();
    wide.dedup();
    wide.retain(|line| lines[line - 1].chars().count() > COLUMNS_MAX);
    wide
}

/// All comments in order. One with several lines is several.
pub(super) fn comments(text: &str) -> Vec<Comment<'_>> {
    let mut comments = Vec::new();
    let mut line = 1;
    let mut rest = text;
    while !rest.is_empty() {
        let length = token_length(rest);
        let (token, after) = rest.split_at(length);
        let is_comment = token.starts_with("//") || token.starts_with("/*");
        for (index, text) in token.lines().enumerate().filter(|_| is_comment) {
            comments.push(Comment { line: line + index, text });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    comments
}

/// The bytes of the comment, literal, word or single character that a text begins with.
fn token_length(text: &str) -> usize {
    let first = text.chars().next().map_or(0, char::len_utf8);
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return block_comment_length(text);
    }
    if text.starts_with('"') {
        return quoted_length(text, '"');
    }
    if text.starts_with('\'') {
        return if is_character(text) { quoted_length(text, '\'') } else { first };
    }
    let word = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    if word == 0 {
        return first;
    }
    // A raw string, or a raw identifier, which has no quote.
    let hashes = text[word..].chars().take_while(|&c| c == '#').count();
    let is_raw = matches!(&text[..word], "r" | "br" | "cr");
    if is_raw && text[word + hashes..].starts_with('"') {
        let start = word + hashes + 1;
        let end = format!("\"{}", "#".repeat(hashes));
        return text[start..].find(&end).map_or(text.len(), |at| start + at + end.len());
    }
    word
}

/// Whether a quote begins a character and not a lifetime.
fn is_character(text: &str) -> bool {
    let mut characters = text.chars().skip(1);
    match characters.next() {
        Some('\\') => true,
        Some(_) => characters.next() == Some('\''),
        None => false,
    }
}

fn quoted_length(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn block_comment_length(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        let rest = &text.as_bytes()[at..];
        if rest.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<(usize, &str)> {
        comments(text).into_iter().map(|comment| (comment.line, comment.text)).collect()
    }

    #[test]
    fn comments_are_found_beside_code() {
        assert_eq!(
            texts("//! a\nlet x = 1; // b\n/* c /* d */\n e */ f(); /// g"),
            [(1, "//! a"), (2, "// b"), (3, "/* c /* d */"), (4, " e */"), (4, "/// g")]
        );
    }

    #[test]
    fn literals_are_no_comments() {
        let text = "\"// a \\\" // b\" r#\"// \" c\"# b\"// d\" '\"' '\\'' // e\n'a: &'b str // f";
        assert_eq!(texts(text), [(1, "// e"), (2, "// f")]);
        assert_eq!(texts("\"\n// a\n\" r#type // b"), [(3, "// b")]);
        assert_eq!(texts("'/' '/' br##\"\"#//\"## // ä"), [(1, "// ä")]);
    }

    #[test]
    fn only_comments_can_be_wide() {
        let comment = |columns: usize| format!("// {}\n", "ä".repeat(columns - 3));
        assert_eq!(wide_lines(&comment(COLUMNS_MAX)), [0; 0]);
        assert_eq!(wide_lines(&format!("\n{}", comment(COLUMNS_MAX + 1))), [2]);
        assert_eq!(wide_lines(&format!("\"{}\"\n", "a".repeat(200))), [0; 0]);
    }
}

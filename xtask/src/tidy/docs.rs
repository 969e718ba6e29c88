//! Finds documentation comments that are too short to say anything.

use super::comments::{Comment, comments};
use crate::source::SourceFile;

/// Minimum number of words: fewer add no fact to the name of the item.
const WORDS_MIN: usize = 4;

/// Returns a complaint for each short paragraph, with its text.
pub(super) fn complaints(sources: &[SourceFile]) -> Vec<String> {
    let in_file = |source: &SourceFile| {
        let at = |short: Paragraph| {
            format!("{}:{}: says nothing: {}", source.path, short.line, short.text)
        };
        short_paragraphs(&source.text).into_iter().map(at).collect::<Vec<_>>()
    };
    sources.iter().flat_map(in_file).collect()
}

/// Paragraph of a documentation comment.
struct Paragraph {
    /// Number of its first line, from 1.
    line: usize,
    text: String,
}

/// Returns the paragraphs with fewer words than [`WORDS_MIN`].
fn short_paragraphs(text: &str) -> Vec<Paragraph> {
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    let is_short = |paragraph: &Paragraph| {
        paragraph.text.split_whitespace().filter(is_word).count() < WORDS_MIN
    };
    paragraphs(text).into_iter().filter(is_prose).filter(is_short).collect()
}

/// Whether a paragraph is neither a list nor the definition of a link.
fn is_prose(paragraph: &Paragraph) -> bool {
    let text = &paragraph.text;
    let is_link_target = text.starts_with('[') && text.contains("]: ");
    !text.starts_with(['-', '*']) && !is_link_target
}

/// Returns all paragraphs. Headings, tables and code are not paragraphs.
fn paragraphs(text: &str) -> Vec<Paragraph> {
    let mut paragraphs: Vec<Paragraph> = Vec::new();
    // Line and marker with which the documentation continues, after the previous comment.
    let mut next = None;
    let (mut is_open, mut is_code) = (false, false);
    for comment in comments(text) {
        let Some((marker, text)) = documentation(&comment) else { continue };
        if next.replace((comment.line + 1, marker)) != Some((comment.line, marker)) {
            (is_open, is_code) = (false, false);
        }
        let is_fence = text.starts_with("```");
        is_code ^= is_fence;
        if is_code || is_fence || text.is_empty() || text.starts_with(['#', '|']) {
            is_open = false;
            continue;
        }
        match paragraphs.last_mut().filter(|_| is_open) {
            Some(paragraph) => {
                paragraph.text += " ";
                paragraph.text += text;
            }
            None => paragraphs.push(Paragraph { line: comment.line, text: text.to_owned() }),
        }
        is_open = true;
    }
    paragraphs
}

/// Marker and text of a documentation comment; `None` for other comments.
fn documentation<'a>(comment: &Comment<'a>) -> Option<(&'static str, &'a str)> {
    let marker = ["///", "//!"].into_iter().find(|marker| comment.text.starts_with(marker))?;
    let text = &comment.text[marker.len()..];
    (!text.starts_with('/')).then(|| (marker, text.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(text: &str) -> Vec<usize> {
        short_paragraphs(text).iter().map(|paragraph| paragraph.line).collect()
    }

    #[test]
    fn a_paragraph_counts_as_a_whole() {
        assert_eq!(short("/// One two\n/// three four.\nfn f() {}\n"), [0; 0]);
        assert_eq!(short("/// One two three four.\n///\n/// Five six.\nfn f() {}\n"), [3]);
        assert_eq!(short("//! One two.\n\n/// Three four.\nstruct S;\n"), [1, 3]);
    }

    #[test]
    fn neighbours_are_not_one_paragraph() {
        assert_eq!(
            short("struct S {\n    /// One.\n    a: u8,\n    /// Two three\n    b: u8 }"),
            [2, 4]
        );
    }

    #[test]
    fn punctuation_is_no_word() {
        assert_eq!(short("/// One - two: three.\n"), [1]);
    }

    #[test]
    fn headings_lists_tables_and_code_are_no_paragraphs() {
        let text =
            "/// # Errors\n/// - a\n///   and b\n/// | b |\n/// ```\n/// c\n///\n/// d\n/// ```\n";
        assert_eq!(short(text), [0; 0]);
        assert_eq!(short("//// a\n// b\n"), [0; 0]);
    }
}

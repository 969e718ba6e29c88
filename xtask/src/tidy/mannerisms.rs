//! Counts phrases that make prose hard to read. Their recorded numbers may only decrease.

use anyhow::{Context, Result, ensure};

use crate::source::{SourceFile, Tree};

/// Path of the record: numbers, each with the phrases that it counts.
const RECORD: &str = "xtask/tidy/mannerisms.txt";

/// Group of phrases that are counted together.
struct Mannerism<'a> {
    record: usize,
    name: &'a str,
    phrases: Vec<Phrase<'a>>,
}

/// Sequence of words within a sentence.
struct Phrase<'a> {
    /// Whether the phrase counts only at the start of a documentation comment.
    is_beginning: bool,
    words: Vec<&'a str>,
    /// The phrase does not count before this word.
    unless_before: Option<&'a str>,
}

/// Word of a file in lower case, without surrounding punctuation.
struct Word {
    /// Number of the line, from 1.
    line: usize,
    text: String,
    begins_documentation: bool,
    ends_sentence: bool,
}

/// Returns complaints about numbers above their records. It prints numbers that are below.
pub(super) fn complaints(tree: &Tree, texts: &[SourceFile]) -> Result<Vec<String>> {
    let recorded = tree.read(RECORD)?;
    let mut complaints = Vec::new();
    let words: Vec<_> = texts.iter().map(|text| words(&text.text)).collect();
    for mannerism in parse(&recorded)? {
        let Mannerism { record, name, .. } = mannerism;
        let count: usize = words.iter().map(|words| mannerism.lines(words).len()).sum();
        if count > record {
            complaints.push(format!(
                "`{name}`: {count} times, more than the {record} in mannerisms.txt: \
                 `cargo xtask tidy --mannerisms FOLDER` tells where"
            ));
        } else if count < record {
            eprintln!("`{name}`: {count}, so the {record} in mannerisms.txt can be lowered");
        }
    }
    Ok(complaints)
}

/// Returns the places of phrases in the files below a folder.
pub(super) fn places(tree: &Tree, texts: &[SourceFile], folder: &str) -> Result<Vec<String>> {
    let recorded = tree.read(RECORD)?;
    let mannerisms = parse(&recorded)?;
    let mut places = Vec::new();
    for text in texts.iter().filter(|text| text.path.starts_with(folder)) {
        let words = words(&text.text);
        for mannerism in &mannerisms {
            let at = |line| format!("{}:{line}: {}", text.path, mannerism.name);
            places.extend(mannerism.lines(&words).into_iter().map(at));
        }
    }
    Ok(places)
}

impl Mannerism<'_> {
    /// Returns the line of each place at which one of the phrases begins.
    fn lines(&self, words: &[Word]) -> Vec<usize> {
        let begins = |at: &usize| self.phrases.iter().any(|phrase| phrase.begins(&words[*at..]));
        (0..words.len()).filter(begins).map(|at| words[at].line).collect()
    }
}

impl Phrase<'_> {
    fn begins(&self, words: &[Word]) -> bool {
        if self.is_beginning && !words[0].begins_documentation {
            return false;
        }
        let length = self.words.len();
        let Some(same) = words.get(..length) else { return false };
        let last = length - 1;
        same.iter().zip(&self.words).all(|(word, expected)| word.text == *expected)
            && !same[..last].iter().any(|word| word.ends_sentence)
            && words.get(length).is_none_or(|next| Some(&*next.text) != self.unless_before)
    }
}

/// Parses a record. A line has a number, and phrases with `|` between them. `^` means the start of
/// a documentation comment; `!` precedes the word before which the phrase does not count.
fn parse(record: &str) -> Result<Vec<Mannerism<'_>>> {
    let lines = record.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mannerism = |line| parse_line(line).with_context(|| format!("mannerisms.txt: {line}"));
    lines.map(mannerism).collect()
}

fn parse_line(line: &str) -> Result<Mannerism<'_>> {
    let (record, name) = line.split_once(' ').context("a number and phrases are expected")?;
    let phrases = name.split('|').map(parse_phrase).collect::<Result<_>>()?;
    Ok(Mannerism { record: record.parse()?, name, phrases })
}

fn parse_phrase(text: &str) -> Result<Phrase<'_>> {
    let (text, unless_before) = match text.split_once('!') {
        Some((text, word)) => (text, Some(word.trim())),
        None => (text, None),
    };
    let text = text.trim();
    let words: Vec<_> = text.trim_start_matches('^').split_whitespace().collect();
    ensure!(!words.is_empty(), "a phrase has no words");
    Ok(Phrase { is_beginning: text.starts_with('^'), words, unless_before })
}

/// Splits a text into words. Comment markers are left out, so a phrase may span several lines.
fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut marker_before = None;
    for (index, line) in text.lines().enumerate() {
        let marker =
            ["///", "//!"].into_iter().find(|marker| line.trim_start().starts_with(marker));
        let mut begins_documentation = marker.is_some() && marker != marker_before;
        marker_before = marker;
        for part in line.split_whitespace() {
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let word = part.trim_matches(|c| !is_part(c));
            if word.is_empty() {
                continue;
            }
            words.push(Word {
                line: index + 1,
                text: word.to_lowercase(),
                begins_documentation,
                ends_sentence: part
                    .trim_end_matches(['`', '"', ')'])
                    .ends_with(['.', ':', '?', ';']),
            });
            begins_documentation = false;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(phrases: &str, text: &str) -> Vec<usize> {
        parse_line(&format!("0 {phrases}")).unwrap().lines(&words(text))
    }

    #[test]
    fn a_phrase_goes_over_lines_and_not_over_sentences() {
        assert_eq!(lines("at once", "/// All at\n/// once. At `once`, at. Once"), [1, 2]);
        assert_eq!(lines("at once | in vain", "// At once in vain. Invain at onces\n"), [1, 1]);
    }

    #[test]
    fn a_phrase_can_be_meant_where_documentation_begins() {
        let text = "//! Of a.\n/// Of b.\n/// Of c.\nfn f() {} // Of d\n    /// Of e.\n";
        assert_eq!(lines("^of", text), [1, 2, 5]);
    }

    #[test]
    fn a_phrase_can_depend_on_the_next_word() {
        assert_eq!(lines("no more !than", "No more than one\nno more. No more"), [2, 2]);
    }

    #[test]
    fn the_record_is_readable() {
        assert!(!parse(include_str!("../../tidy/mannerisms.txt")).unwrap().is_empty());
        assert!(parse("many at once\n").is_err());
        assert!(parse("1 at once |\n").is_err());
    }
}

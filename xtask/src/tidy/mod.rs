//! `cargo xtask tidy`: rules of this repository that no other tool checks.

mod comments;
mod docs;
mod documents;
mod mannerisms;
mod names;

use anyhow::{Result, bail};

use crate::release::version;
use crate::shape;
use crate::source::Tree;

/// Maximum number of lines of a file.
const LINES_MAX: usize = 1000;

/// Maximum number of lines between an `unsafe` block and the start of its SAFETY comment above it.
const SAFETY_REACH_LINES: usize = 8;

/// The checkout to check, or to print mannerisms of.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// Prints the mannerisms in the files below a folder, and checks nothing
    #[arg(long, value_name = "FOLDER")]
    mannerisms: Option<String>,
    #[command(flatten)]
    tree: Tree,
}

/// Checks every Rust file and every document that git tracks. It prints all complaints, and then
/// fails if there are any.
pub(crate) fn run(options: &Options) -> Result<()> {
    let sources = options.tree.sources()?;
    let texts = options.tree.texts()?;
    if let Some(folder) = &options.mannerisms {
        mannerisms::places(&options.tree, &texts, folder)?
            .iter()
            .for_each(|place| println!("{place}"));
        return Ok(());
    }
    let mut complaints: Vec<_> =
        sources.iter().flat_map(|source| check(&source.path, &source.text)).collect();
    complaints.extend(documents::complaints(&options.tree, &sources)?);
    complaints.extend(mannerisms::complaints(&options.tree, &texts)?);
    complaints.extend(shape::complaints(&options.tree, &sources)?);
    complaints.extend(names::complaints(&sources)?);
    complaints.extend(version::complaints(&options.tree)?);
    complaints.extend(comments::complaints(&sources));
    complaints.extend(docs::complaints(&sources));
    for complaint in &complaints {
        eprintln!("{complaint}");
    }
    if !complaints.is_empty() {
        bail!("{} house rules broken", complaints.len());
    }
    Ok(())
}

fn check(path: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let mut complaints = Vec::new();
    if lines.len() > LINES_MAX {
        complaints.push(format!("{path}: {} lines: does it hold more than one noun?", lines.len()));
    }
    if !text.starts_with("//!") && !text.starts_with("#!") {
        complaints.push(format!("{path}: the first line does not say what the file is"));
    }
    for (index, line) in lines.iter().enumerate() {
        let number = index + 1;
        if is_unsafe_block(line) && !has_reason(&lines, index) {
            complaints.push(format!("{path}:{number}: unsafe without a SAFETY comment"));
        }
        for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX")] {
            if line.contains(word) {
                complaints.push(format!("{path}:{number}: {word}: write an issue instead"));
            }
        }
    }
    complaints
}

fn is_unsafe_block(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    (code.contains("unsafe {") || code.contains("unsafe impl")) && !code.contains('"')
}

fn has_reason(lines: &[&str], index: usize) -> bool {
    lines[index.saturating_sub(SAFETY_REACH_LINES)..=index].iter().any(|l| l.contains("SAFETY"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsafe_block_needs_a_reason() {
        let bare = "//! File.\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(check("a.rs", bare).len(), 1);
        let reasoned =
            "//! File.\nfn f() {\n    // SAFETY: g has no contract.\n    unsafe { g() }\n}\n";
        assert_eq!(check("a.rs", reasoned), Vec::<String>::new());
    }

    #[test]
    fn a_long_file_is_noticed() {
        let long = format!("//! File.\n{}", "// line\n".repeat(LINES_MAX));
        assert_eq!(check("a.rs", &long).len(), 1);
    }

    #[test]
    fn a_file_begins_with_documentation() {
        assert_eq!(check("a.rs", "fn f() {}\n").len(), 1);
    }
}

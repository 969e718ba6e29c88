//! Rules that are broken in many places, whose number is recorded. It may only fall.

use std::cmp::Ordering;

use anyhow::Result;
use clap::ValueEnum;

use super::{comments, docs, names};
use crate::source::SourceFile;

/// One of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Counted {
    /// Names of types that several files define, tests excluded
    Names,
    /// Comment lines wider than 100 columns
    Comments,
    /// Paragraphs of documentation with fewer than four words
    Docs,
}

impl Counted {
    /// In how many places the rule may be broken. A commit that mends some lowers the number here.
    const fn record(self) -> usize {
        match self {
            Self::Names => 0,
            Self::Comments => 0,
            Self::Docs => 0,
        }
    }

    const fn describe(self) -> &'static str {
        match self {
            Self::Names => "type names that several files define",
            Self::Comments => "comment lines wider than 100 columns",
            Self::Docs => "paragraphs of documentation with fewer than four words",
        }
    }

    /// Each place where the rule is broken, as a line of text.
    pub(super) fn offenders(self, sources: &[SourceFile]) -> Result<Vec<String>> {
        match self {
            Self::Names => names::offenders(sources),
            Self::Comments => Ok(comments::offenders(sources)),
            Self::Docs => Ok(docs::offenders(sources)),
        }
    }

    /// The verdict on a number of places: an error if there are too many.
    pub(super) fn judge(self, count: usize) -> Result<String, String> {
        let text = |verdict| format!("{}: {count}, {verdict}", self.describe());
        judge(count, self.record()).map(text).map_err(text)
    }
}

fn judge(count: usize, record: usize) -> Result<String, String> {
    match count.cmp(&record) {
        Ordering::Less => Ok(format!("so the record of {record} in counted.rs can be lowered")),
        Ordering::Equal => Ok("as recorded".to_owned()),
        Ordering::Greater => {
            Err(format!("more than the {record} on record: `cargo xtask tidy --list` tells which"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_may_fall_and_not_rise() {
        assert_eq!(judge(7, 7).as_deref(), Ok("as recorded"));
        assert!(judge(6, 7).expect("fewer").contains("can be lowered"));
        assert!(judge(8, 7).expect_err("more").contains("on record"));
    }
}

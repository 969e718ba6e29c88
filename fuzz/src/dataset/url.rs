//! URLs, names and hashes, as users write them.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use feedrail_dataset::manifest::{Crc32c, Generation, RelativePath};
use feedrail_dataset::order::Shuffle;
use feedrail_dataset::url::{SourceUrl, TargetUrl};
use feedrail_dataset::{Blake3Hash, Name};

use super::bounded;

/// A text, as each of the types: what is accepted is written as a text that means the same.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    check::<SourceUrl>(text);
    check::<TargetUrl>(text);
    check::<Name>(text);
    check::<RelativePath>(text);
    check::<Blake3Hash>(text);
    check::<Generation>(text);
    check::<Crc32c>(text);
    check::<Shuffle>(text);
}

fn check<T: FromStr<Err: Display> + Display + Debug + PartialEq>(text: &str) {
    match bounded(text.len(), || text.parse::<T>()) {
        Ok(value) => {
            let written = value.to_string();
            let again = written.parse::<T>().unwrap_or_else(|error| panic!("{written:?}: {error}"));
            assert_eq!(again, value);
            assert_eq!(again.to_string(), written);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

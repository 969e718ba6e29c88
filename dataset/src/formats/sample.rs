//! A sample as its format has it.

use super::shard::ByteRange;
use crate::Sample;

/// A sample with what its format says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedSample {
    /// Range of the sample's bytes in the shard.
    pub sample: Sample,
    /// Key of WebDataset, or name of a tensor or of an array in an archive.
    pub key: Option<String>,
    /// Parts in order, where they can be read one by one: the members of a tar archive, the column
    /// chunks of a row group.
    pub members: Vec<SampleMember>,
}

/// A part of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleMember {
    /// The extension of a tar member, or the path of a column in the schema.
    pub name: String,
    /// Where it lies in the shard.
    pub range: ByteRange,
}

impl From<Sample> for KeyedSample {
    fn from(sample: Sample) -> Self {
        Self { sample, key: None, members: Vec::new() }
    }
}

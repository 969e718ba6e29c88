//! Sample with the key and members that its format gives it.

use super::shard::ByteRange;
use crate::Sample;

/// Sample with its key and members, if the format has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyedSample {
    /// Range of the sample's bytes in the shard.
    pub sample: Sample,
    /// Key of a WebDataset sample, or name of a tensor or of an array in an archive.
    pub key: Option<String>,
    /// Members that can be read separately, in order: those of a tar archive, or the column chunks
    /// of a row group.
    pub members: Vec<SampleMember>,
}

/// Member of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleMember {
    /// Extension of a tar member, or path of a column in the schema.
    pub name: String,
    /// Byte range of the member in the shard.
    pub range: ByteRange,
}

impl From<Sample> for KeyedSample {
    fn from(sample: Sample) -> Self {
        Self { sample, key: None, members: Vec::new() }
    }
}

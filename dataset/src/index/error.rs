//! Errors of reading an index.

use crate::{Name, Sample};

/// Reason why a file is not a valid index, or does not fit the data set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first six bytes are not those of NumPy's format.
    #[error("no .npy file: its first bytes are not \\x93NUMPY")]
    NotNpy,
    /// The file ends within its header.
    #[error("the file has {bytes} bytes, but its header has {header_bytes}; it was cut off")]
    CutHeader {
        /// Bytes that the header should have, at least.
        header_bytes: u64,
        /// Size of the file in bytes.
        bytes: u64,
    },
    /// Unsupported version of NumPy's format.
    #[error("version {major}.{minor} of the .npy format is not known; 1.0, 2.0 and 3.0 are")]
    Version {
        /// Major version, byte 6 of the file.
        major: u8,
        /// Minor version, byte 7 of the file.
        minor: u8,
    },
    /// The header is not the dictionary that NumPy's format requires.
    #[error("byte {offset} of the header of the .npy file should be {expected}")]
    Header {
        /// Offset in the file at which it differs, in bytes.
        offset: usize,
        /// Text or field that was expected there.
        expected: &'static str,
    },
    /// The data type of the elements is not that of an index record.
    #[error(
        "the dtype is not that of an index, from byte {offset}; it should be [('shard', '<u4'), \
         ('length', '<u4'), ('offset', '<u8'), ('crc32c', '<u4')]"
    )]
    Dtype {
        /// Offset in the file of the first difference, in bytes.
        offset: usize,
    },
    /// The array is in Fortran order.
    #[error("the array is in Fortran's order; save it in C order")]
    FortranOrder,
    /// The array does not have exactly one axis.
    #[error("the shape, at byte {offset}, should be of one axis, as in (1000,)")]
    Shape {
        /// Offset in the file of the shape, in bytes.
        offset: usize,
    },
    /// The size of the file does not match the number of samples in the header.
    #[error(
        "the header tells of {samples} samples of {} bytes, but {bytes} bytes follow it; the file \
         was cut off, or is another's rest",
        size_of::<Sample>()
    )]
    Length {
        /// Number of samples in the header.
        samples: u64,
        /// Number of bytes behind the header.
        bytes: u64,
    },
    /// The bytes behind the records are not a table of shards.
    #[error("the table of shards behind the records cannot be read: {reason}")]
    Table {
        /// First rule that the bytes break.
        reason: String,
    },
    /// A source does not have a shard of the index.
    #[error("the index has samples of {shard}, which is not among the {shards} shards")]
    NotInSource {
        /// Name of the missing shard.
        shard: Name,
        /// Number of shards in the source.
        shards: usize,
    },
    /// A shard of a source differs from the one that the index was made from.
    #[error(
        "{shard} has the {what} {index} in the index, and {found} now: build the index again, with \
         `feedrail index` or feedrail.index.build"
    )]
    OtherShard {
        /// Name of the shard.
        shard: Name,
        /// Property that differs: size, CRC-32C or generation.
        what: &'static str,
        /// Value in the index.
        index: String,
        /// Value in the source.
        found: String,
    },
    /// The index and a source have different numbers of shards with the same name.
    #[error("{index} shards of the index are called {shard}, and {found} of the source")]
    Namesakes {
        /// Name of these shards.
        shard: Name,
        /// Number of them in the index.
        index: usize,
        /// Number of them in the source.
        found: usize,
    },
    /// A sample refers to a shard that the data set does not have.
    #[error("sample {sample} is in shard {shard}, but there are {shards}, counted from 0")]
    NoShard {
        /// Number of the sample, from 0.
        sample: u64,
        /// Number of the shard, from 0.
        shard: u32,
        /// Number of shards in the data set.
        shards: usize,
    },
    /// A sample extends past the end of its shard.
    #[error(
        "sample {sample} is {length} bytes from offset {offset} of shard {shard}, which has only \
         {shard_bytes}"
    )]
    PastEnd {
        /// Number of the sample, from 0.
        sample: u64,
        /// Number of the shard, from 0.
        shard: u32,
        /// Offset of the sample in the shard, in bytes.
        offset: u64,
        /// Bytes of the sample.
        length: u32,
        /// Size of the shard in bytes.
        shard_bytes: u64,
    },
}

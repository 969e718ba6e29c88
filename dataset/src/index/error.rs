//! Errors of an index.

use crate::{Name, Sample};

/// Why a file is not the index of a data set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first six bytes are not those of NumPy's format.
    #[error("no .npy file: its first bytes are not \\x93NUMPY")]
    NotNpy,
    /// The file ends within its header.
    #[error("the file has {bytes} bytes, but its header has {header_bytes}; it was cut off")]
    CutHeader {
        /// Length that the header should have, as far as it is known.
        header_bytes: u64,
        /// Length of the file.
        bytes: u64,
    },
    /// A version of the format that this crate does not know.
    #[error("version {major}.{minor} of the .npy format is not known; 1.0, 2.0 and 3.0 are")]
    Version {
        /// Byte 6 of the file.
        major: u8,
        /// Byte 7 of the file.
        minor: u8,
    },
    /// The header is not the dictionary that the format demands.
    #[error("byte {offset} of the header of the .npy file should be {expected}")]
    Header {
        /// Counted from the beginning of the file.
        offset: usize,
        /// Bytes or field that should be there.
        expected: &'static str,
    },
    /// The elements are not the records of an index.
    #[error(
        "the dtype is not that of an index, from byte {offset}; it should be [('shard', '<u4'), \
         ('length', '<u4'), ('offset', '<u8'), ('crc32c', '<u4')]"
    )]
    Dtype {
        /// The first byte that differs, counted from the beginning of the file.
        offset: usize,
    },
    /// The array is stored in Fortran's order.
    #[error("the array is in Fortran's order; save it in C order")]
    FortranOrder,
    /// The array has no axis, or several.
    #[error("the shape, at byte {offset}, should be of one axis, as in (1000,)")]
    Shape {
        /// Where the shape begins, counted from the beginning of the file.
        offset: usize,
    },
    /// The file has more or fewer bytes than its header tells.
    #[error(
        "the header tells of {samples} samples of {} bytes, but {bytes} bytes follow it; the file \
         was cut off, or is another's rest",
        size_of::<Sample>()
    )]
    Length {
        /// The length of the array.
        samples: u64,
        /// Bytes behind the header.
        bytes: u64,
    },
    /// The bytes behind the records are no table of shards.
    #[error("the table of shards behind the records cannot be read: {reason}")]
    Table {
        /// The first rule that it breaks.
        reason: String,
    },
    /// A source lacks a shard.
    #[error("the index has samples of {shard}, which is not among the {shards} shards")]
    NotInSource {
        /// The name of the shard.
        shard: Name,
        /// How many shards the source has.
        shards: usize,
    },
    /// A shard of a source is not the one that the index was made of.
    #[error(
        "{shard} has the {what} {index} in the index, and {found} now: build the index again, with \
         `feedrail index` or feedrail.index.build"
    )]
    OtherShard {
        /// The name of the shard.
        shard: Name,
        /// The property that differs: size, CRC-32C or generation.
        what: &'static str,
        /// Value in the index.
        index: String,
        /// Value in the source.
        found: String,
    },
    /// A name that the index and a source have different numbers of times.
    #[error("{index} shards of the index are called {shard}, and {found} of the source")]
    Namesakes {
        /// The name of the shards.
        shard: Name,
        /// How many the index has.
        index: usize,
        /// How many the source has.
        found: usize,
    },
    /// A sample is in a shard that the data set does not have.
    #[error("sample {sample} is in shard {shard}, but there are {shards}, counted from 0")]
    NoShard {
        /// The number of the sample, from 0.
        sample: u64,
        /// The number of the shard, from 0.
        shard: u32,
        /// How many shards the data set has.
        shards: usize,
    },
    /// A sample ends after its shard.
    #[error(
        "sample {sample} is {length} bytes from offset {offset} of shard {shard}, which has only \
         {shard_bytes}"
    )]
    PastEnd {
        /// The number of the sample, from 0.
        sample: u64,
        /// The number of the shard, from 0.
        shard: u32,
        /// The first byte of the sample, from the beginning of the shard.
        offset: u64,
        /// How many bytes the sample has.
        length: u32,
        /// How many bytes the shard has.
        shard_bytes: u64,
    },
}

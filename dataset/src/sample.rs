//! Position of a sample in its shard.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Shard, offset and length of a sample: the record of `index.npy`, 20 bytes.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct Sample {
    /// Number of the shard, from 0: its position in the index's table of shards or, without one, in
    /// the manifest.
    pub shard: U32,
    /// Length of the sample in bytes.
    pub length: U32,
    /// Offset of the first byte in the shard.
    pub offset: U64,
    /// CRC-32C of the sample's bytes, or 0 if it was not computed.
    pub crc32c: U32,
}

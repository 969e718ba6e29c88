//! Where a sample lies.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where one sample lies: a record of an index, 20 bytes, as it is in `index.npy`.
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
    /// The shard that has it, counted from 0 in the order of the manifest.
    pub shard: U32,
    /// How many bytes it has.
    pub length: U32,
    /// Offset of the first byte from the beginning of the shard.
    pub offset: U64,
    /// CRC-32C of its bytes, or 0 if it was not computed.
    pub crc32c: U32,
}

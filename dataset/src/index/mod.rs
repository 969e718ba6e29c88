//! `index.npy`: the shard, offset and length of each sample of a data set.
//!
//! The file is an array of NumPy's format (versions 1.0, 2.0 and 3.0) with one axis, in C order,
//! whose elements are records of 20 bytes:
//!
//! ```python
//! [('shard', '<u4'), ('length', '<u4'), ('offset', '<u8'), ('crc32c', '<u4')]
//! ```
//!
//! `numpy.load("index.npy", mmap_mode="r")` reads it. What [`IndexWriter`] writes is what
//! `numpy.save` of NumPy 2 writes, byte for byte.
//!
//! # Shards
//!
//! The records are followed by a table that names the shards, which numpy passes over: 8 bytes
//! `FRSHARDS`, the length of the rest of the file as 64 bits in little-endian order, and that many
//! bytes of JSON in UTF-8, an object with the key `shards`. It has an object for each shard that
//! the records count:
//!
//! | key | what it is | may be left out |
//! |---|---|---|
//! | `name` | name of the file or namespace, with its folders | no |
//! | `bytes` | exact size | no |
//! | `samples` | how many records are of the shard | no |
//! | `uuid` | UUID of the namespace | yes |
//! | `generation` | generation of the namespace, 16 hexadecimal digits | yes |
//! | `crc32c` | CRC-32C of all bytes, 8 hexadecimal digits | yes |
//!
//! Other keys are passed over. [`ShardTable::numbers_in`] finds the shards in a source by their
//! names. Files of the old form end with the last record; their numbers mean the shards of a source
//! in its order.
//!
//! Keys and members of samples are in a file beside it: [`SampleKeys`].

mod error;
mod header;
mod keys;
mod literal;
mod shards;
mod stream;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use keys::{KeyArray, SampleKeys};
pub use shards::{IndexShard, ShardTable};
pub use stream::{ReadError, check_reader};
pub use view::{Index, check_samples};
pub use writer::IndexWriter;

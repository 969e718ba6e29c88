//! `index.npy`: where each sample of a data set lies.
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
//! Keys and members of samples are in a file beside it: [`SampleKeys`].

mod error;
mod header;
mod keys;
mod literal;
mod stream;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use error::Error;
pub use keys::{KeyArray, SampleKeys};
pub use stream::{ReadError, check_reader};
pub use view::{Index, check_samples};
pub use writer::IndexWriter;

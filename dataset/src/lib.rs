//! Training data as byte ranges of shards.
//!
//! A shard is a file, or a namespace of a target. A [`Sample`] is a range of bytes of a shard. This
//! crate does no I/O: what it reads, it reads through [`std::io`] traits of the caller's.

#![forbid(unsafe_code)]

mod blake3_hash;
pub mod formats;
pub mod index;
pub mod manifest;
mod name;
pub mod order;
mod sample;
pub mod state;
mod text;
pub mod url;

pub use blake3_hash::{Blake3Hash, InvalidHash};
pub use name::{InvalidName, Name};
pub use sample::Sample;

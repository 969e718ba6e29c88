//! Training data as byte ranges of shards.
//!
//! A shard is a file, or a namespace of a target. A [`Sample`] is a range of bytes of a shard. This
//! crate does no I/O: what it reads, it reads through [`std::io`] traits of the caller's.

#![forbid(unsafe_code)]

pub mod formats;
pub mod index;
mod sample;

pub use sample::Sample;

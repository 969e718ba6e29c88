//! Training data as byte ranges of shards.
//!
//! A shard is a file, or a namespace of a target. A [`Sample`] is a byte range of a shard. This
//! crate opens no files and no connections: it reads and writes through [`std::io`] traits.
//!
//! | question | module |
//! |---|---|
//! | Which shards are there, and which targets have them? | [`manifest`], [`url`] |
//! | Where is sample 17? | [`index`] |
//! | Which sample comes when, and who reads it? | [`order`] |
//! | Where does a stopped loader continue? | [`state`] |
//! | Which replica of a shard is read? | [`placement`] |
//! | Where are the samples of a file in a common format? | [`formats`] |
//!
//! Not implemented: decoding of samples, and samples that are no range of bytes of a shard
//! (compressed shards and members, sparse files in archives, arrays in Fortran order, encrypted
//! Parquet, samples of 4 GiB or more), which are errors.
//!
//! A rank of a training run reads its part of each batch:
//!
//! ```
//! use std::num::NonZeroU64;
//! use feedrail_dataset::index::{Index, IndexWriter};
//! use feedrail_dataset::order::{Shuffle, Stripe};
//! use feedrail_dataset::state::{Place, Sequence, State};
//! use feedrail_dataset::{Blake3Hash, Sample};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // An index of 1,000 samples of 2,050 bytes in one shard. A real one is a memory-mapped file.
//! let mut writer = IndexWriter::new(std::io::Cursor::new(Vec::new()))?;
//! for row in 0..1000 {
//!     let (length, offset) = (2050.into(), (row * 2050).into());
//!     writer.append(&[Sample { length, offset, ..Sample::default() }])?;
//! }
//! let index = Index::parse(writer.finish()?.into_inner())?;
//! index.check(&[1000 * 2050])?;
//!
//! let sequence = Sequence {
//!     dataset: Blake3Hash::of(index.file()),
//!     samples: index.len(),
//!     shuffle: Shuffle::Global,
//!     seed: 7,
//!     global_batch: NonZeroU64::new(48).ok_or("a batch has samples")?,
//!     drop_last: false,
//! };
//! let mut place = Place { epoch: 0, consumed: 0 };
//! let order = sequence.order(place.epoch)?;
//! let rank = Stripe::new(1, 4)?;
//! let mut own = [0; 12];
//! for batch in sequence.batches(place).take(3) {
//!     let count = order.fill_stripe(batch.clone(), rank, &mut own);
//!     for &sample in &own[..count] {
//!         let Sample { shard, offset, length, .. } = index.samples()[sample as usize];
//!         println!("read {length} bytes from {offset} of shard {shard}");
//!     }
//!     place.consumed = batch.end;
//! }
//!
//! // The checkpoint has the state. Six ranks, or one, continue where the four were.
//! let checkpoint = sequence.state(place).to_json();
//! let place = sequence.resume(&State::parse(checkpoint.as_bytes())?)?;
//! assert_eq!(place, Place { epoch: 0, consumed: 144 });
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod blake3_hash;
pub mod formats;
pub mod index;
pub mod manifest;
mod name;
pub mod order;
pub mod placement;
mod sample;
pub mod state;
mod text;
pub mod url;

pub use blake3_hash::{Blake3Hash, HashingReader, InvalidHash};
pub use name::{InvalidName, Name};
pub use sample::Sample;

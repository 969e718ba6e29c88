//! Positions of the samples in common formats of training data.
//!
//! [`detect()`] determines the format of a shard, and [`ShardFormat::samples`] returns its samples
//! in order. Shards are read through [`ReadAt`]: only the headers, footers and tables that contain
//! the positions of samples, and never more of them at a time than a limit that each format states.
//! The types of some formats give more details, such as [`Megatron::documents`].
//!
//! ```
//! use feedrail_dataset::formats::{SampleOptions, ShardBytes, ShardFormat, ShardSource, detect};
//!
//! let bytes = b"\x93NUMPY\x01\x00\x3e\x00{'descr': '<u2', 'fortran_order': False, \
//!     'shape': (2, 1), }   \n\x01\x00\x02\x00".to_vec();
//! let shard = ShardBytes::new(0, &bytes);
//! assert_eq!(detect("a.npy", shard)?, ShardFormat::Npy);
//! let samples = ShardFormat::Npy.samples(ShardSource::alone(shard), &SampleOptions::default())?;
//! let offsets: Vec<u64> = samples.map(|sample| sample.unwrap().sample.offset.get()).collect();
//! assert_eq!(offsets, [72, 74]);
//! # Ok::<(), feedrail_dataset::formats::FormatError>(())
//! ```

mod detect;
mod dtype;
mod error;
mod format_name;
mod mds;
mod megatron;
mod npy;
mod npz;
mod parquet;
mod read_at;
mod safetensors;
mod sample;
mod shard;
mod tar;
mod tfrecord;
mod tokens;
mod webdataset;

use core::num::NonZeroU32;

pub use self::detect::detect;
pub use self::dtype::{Dtype, DtypeError};
pub use self::error::{FormatError, FormatProblem};
pub use self::format_name::UnknownFormat;
pub use self::mds::{Mds, MdsColumn, MdsIndex, MdsShard};
pub use self::megatron::Megatron;
pub use self::npy::Npy;
pub use self::npz::{NpzArray, npz_arrays};
pub use self::parquet::{ColumnChunk, RowGroup, row_groups};
pub use self::read_at::{ChunkedReads, ReadAt, ShardFile};
pub use self::safetensors::{SafetensorsHeader, TensorRange};
pub use self::sample::{KeyedSample, SampleMember};
pub use self::shard::{ByteRange, ShardBytes};
use self::tar::ArchiveEnd;
pub use self::tokens::{TokenBlocks, Tokens};
pub use self::webdataset::webdataset_members;

/// File format of training data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShardFormat {
    /// The `.bin` of nanoGPT and of llm.c: blocks of tokens.
    Tokens,
    /// The `.bin` and `.idx` of Megatron: sequences of tokens.
    Megatron,
    /// A tar archive of WebDataset: groups of members.
    WebDataset,
    /// An uncompressed MosaicML shard: samples as the writer of MosaicML Streaming encoded them.
    Mds,
    /// TFRecord: the data of each record, without length and checksums.
    TfRecord,
    /// safetensors (Hugging Face): tensors.
    Safetensors,
    /// npy: rows of a numpy array, along its first axis.
    Npy,
    /// npz: numpy arrays in a zip archive, whole, or the rows of one of them.
    Npz,
    /// Apache Parquet: row groups, with column chunks as members.
    Parquet,
}

/// Options of [`ShardFormat::samples`], where a format does not determine the samples.
#[derive(Clone, Debug)]
pub struct SampleOptions {
    /// Length and distance of the samples of a token file.
    pub blocks: TokenBlocks,
    /// Data type of tokens without a header. If there is a header, it must contain the same type.
    pub dtype: Option<Dtype>,
    /// Array of an npz whose rows are the samples; `None` if each array is a sample.
    pub array: Option<String>,
    /// Whether the blocks of zeros at the end of a tar archive are skipped, so that archives joined
    /// by `cat` are read as one.
    pub ignore_zeros: bool,
    /// Whether all samples are read to compute their CRC-32C. Then the data checksums of TFRecord
    /// are verified, too.
    pub checksum: bool,
}

impl Default for SampleOptions {
    /// Blocks of 1,024 tokens of 16 bits, with which nanoGPT trains GPT-2.
    fn default() -> Self {
        let block_size = NonZeroU32::new(1024).expect("not 0");
        let blocks = TokenBlocks::adjacent(block_size);
        Self { blocks, dtype: None, array: None, ignore_zeros: false, checksum: false }
    }
}

/// Shard, with the index file that Megatron's format has.
#[derive(Clone, Copy, Debug)]
pub struct ShardSource<'a> {
    /// File that contains the samples.
    pub data: ShardBytes<'a>,
    /// `.idx` of Megatron's format, for its `.bin`.
    pub idx: Option<ShardBytes<'a>>,
}

impl<'a> ShardSource<'a> {
    /// Shard of a format that has no separate index file.
    pub fn alone(data: ShardBytes<'a>) -> Self {
        Self { data, idx: None }
    }
}

/// Iterator over the samples of a shard, in order. After an error it ends.
pub type ShardSamples<'a> = Box<dyn Iterator<Item = Result<KeyedSample, FormatError>> + 'a>;

impl ShardFormat {
    /// Returns the samples of a shard, in the order of their bytes or of the format's table.
    ///
    /// # Errors
    /// The start or the end of the shard is not that of this format. An error that is found later
    /// is the last item of the iterator.
    pub fn samples<'a>(
        self,
        source: ShardSource<'a>,
        options: &SampleOptions,
    ) -> Result<ShardSamples<'a>, FormatError> {
        let samples = self.places(source, options)?;
        if !options.checksum {
            return Ok(samples);
        }
        Ok(Box::new(samples.map(move |sample| checksummed(source.data, sample?))))
    }

    fn places<'a>(
        self,
        source: ShardSource<'a>,
        options: &SampleOptions,
    ) -> Result<ShardSamples<'a>, FormatError> {
        let data = source.data;
        Ok(match self {
            Self::Tokens => {
                let tokens = Tokens::open(data, options.dtype, options.blocks)?;
                plain(data, numbered(move |number| tokens.range(data, number)))
            }
            Self::Megatron => plain(data, megatron(source)?.ranges()),
            Self::WebDataset if options.ignore_zeros => {
                Box::new(webdataset::samples(data, ArchiveEnd::Shard))
            }
            Self::WebDataset => Box::new(webdataset::samples(data, ArchiveEnd::Mark)),
            Self::Mds => plain(data, Mds::open(data)?.ranges()),
            Self::TfRecord => {
                Box::new(tfrecord::samples(data, options.checksum).map(|sample| Ok(sample?.into())))
            }
            Self::Safetensors => tensors(data)?,
            Self::Npy => rows(data, Npy::open(data, data.whole())?),
            Self::Npz => npz(data, options.array.as_deref())?,
            Self::Parquet => Box::new(parquet::samples(data)?),
        })
    }
}

fn megatron(source: ShardSource<'_>) -> Result<Megatron<'_>, FormatError> {
    let missing = || source.data.unexpected(0, "the .idx of Megatron beside its .bin", "none");
    Megatron::open(source.idx.ok_or_else(missing)?, source.data)
}

/// Turns ranges into samples without keys.
fn plain<'a>(
    shard: ShardBytes<'a>,
    ranges: impl Iterator<Item = Result<ByteRange, FormatError>> + 'a,
) -> ShardSamples<'a> {
    Box::new(ranges.map(move |range| Ok(shard.sample(range?)?.into())))
}

fn numbered(
    mut range: impl FnMut(u64) -> Result<Option<ByteRange>, FormatError>,
) -> impl Iterator<Item = Result<ByteRange, FormatError>> {
    let mut number = 0;
    shard::until_error(move || {
        number += 1;
        range(number - 1)
    })
}

fn rows(shard: ShardBytes<'_>, array: Npy) -> ShardSamples<'_> {
    plain(shard, numbered(move |number| Ok(array.row(number))))
}

fn named(shard: ShardBytes<'_>, range: ByteRange, key: String) -> Result<KeyedSample, FormatError> {
    Ok(KeyedSample { sample: shard.sample(range)?, key: Some(key), members: Vec::new() })
}

fn tensors(shard: ShardBytes<'_>) -> Result<ShardSamples<'_>, FormatError> {
    let tensors: Vec<_> = SafetensorsHeader::open(shard)?.tensors().collect();
    let tensor = move |tensor: TensorRange| named(shard, tensor.range, tensor.name);
    Ok(Box::new(tensors.into_iter().map(move |found| tensor(found?))))
}

fn npz<'a>(shard: ShardBytes<'a>, array: Option<&str>) -> Result<ShardSamples<'a>, FormatError> {
    let arrays = npz_arrays(shard)?;
    let Some(name) = array else {
        let whole = move |array: NpzArray| named(shard, array.npy.items(), array.name);
        return Ok(Box::new(arrays.into_iter().map(whole)));
    };
    let names: Vec<String> = arrays.iter().map(|array| array.name.clone()).collect();
    let array = arrays.into_iter().find(|array| array.name == name);
    let missing =
        || shard.unexpected(0, "an array of the name that was asked for", names.join(", "));
    Ok(rows(shard, array.ok_or_else(missing)?.npy))
}

fn checksummed(shard: ShardBytes<'_>, mut found: KeyedSample) -> Result<KeyedSample, FormatError> {
    let sample = &mut found.sample;
    if sample.crc32c.get() == 0 {
        let range = shard.range(sample.offset.get(), sample.length.get().into(), "a sample")?;
        sample.crc32c = shard.crc32c(range)?.into();
    }
    Ok(found)
}

//! Mosaic Data Shard (MDS) of MosaicML Streaming: `index.json` and its shards.
//!
//! A shard consists of the number of samples (32 bits), one offset more than that (32 bits each), a
//! description in JSON, and the samples. `index.json` lists the shards and their columns.

use serde::Deserialize;

use super::error::{FormatError, FormatProblem};
use super::shard::{ByteRange, ShardBytes, ShardWindow, until_error};
use crate::manifest::RelativePath;

/// Limit of `index.json`, above any real one: 10^5 shards with 10 columns take 60 MB.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// Uncompressed shard of MDS.
#[derive(Clone, Copy, Debug)]
pub struct Mds<'a> {
    shard: ShardBytes<'a>,
    samples: u32,
    /// Table of the offsets of all samples and of the end of the last one.
    table: ByteRange,
}

impl<'a> Mds<'a> {
    /// Reads the number of samples, and checks both ends of the table of offsets.
    ///
    /// # Errors
    /// The table extends past the end of the shard, or its first or last offset is wrong.
    pub fn open(shard: ShardBytes<'a>) -> Result<Self, FormatError> {
        let samples = u32::from_le_bytes(shard.array(0, "the number of samples")?);
        let table = shard.range(4, 4 * (u64::from(samples) + 1), "the offsets of the samples")?;
        let this = Self { shard, samples, table };
        let (first, last) = (this.offset(0)?, this.offset(samples)?);
        if !(table.end()..=last).contains(&first) {
            let expected = "a first sample between the offsets and the end";
            return Err(shard.unexpected(4, expected, first));
        }
        if last != shard.whole().end() {
            let found = format!("{last} of {} bytes", shard.whole().end());
            return Err(shard.unexpected(table.end() - 4, "the end of the shard", found));
        }
        Ok(this)
    }

    /// Whether the table of offsets is valid, which is how a shard of MDS is recognised.
    pub(super) fn is_one(shard: ShardBytes<'_>) -> bool {
        Mds::open(shard).is_ok()
    }

    /// Number of samples in the shard.
    pub fn samples(&self) -> u32 {
        self.samples
    }

    /// Returns the byte range of each sample, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Result<ByteRange, FormatError>> + use<'a> {
        let this = *self;
        let mut window = ShardWindow::new(self.shard);
        // `open` has checked that the first offset is behind the table.
        let (mut number, mut begin) = (0, None);
        until_error(move || {
            if number == this.samples {
                return Ok(None);
            }
            let from = match begin {
                Some(begin) => begin,
                None => this.offset(0)?,
            };
            number += 1;
            let at = this.table.offset() + 4 * u64::from(number);
            let to = u64::from(u32::from_le_bytes(window.array(at, "an offset")?));
            let length = to.checked_sub(from).ok_or_else(|| {
                this.shard.unexpected(at, "offsets that rise", format!("{to} after {from}"))
            })?;
            begin = Some(to);
            this.shard.range(from, length, "a sample").map(Some)
        })
    }

    fn offset(&self, number: u32) -> Result<u64, FormatError> {
        let at = self.table.offset() + 4 * u64::from(number);
        Ok(u32::from_le_bytes(self.shard.array(at, "an offset")?).into())
    }
}

/// Contents of an `index.json`.
#[derive(Clone, Debug)]
pub struct MdsIndex {
    /// The shards in the order of the data set.
    pub shards: Vec<MdsShard>,
}

/// Entry of `index.json` for one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdsShard {
    /// Path of the shard file relative to the folder of the index; with folders if indexes were
    /// merged.
    pub basename: String,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Number of samples in the shard.
    pub samples: u32,
    /// Columns of each sample, in order.
    pub columns: Vec<MdsColumn>,
}

/// Column of the samples in a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MdsColumn {
    /// Name that the writer gave the column.
    pub name: String,
    /// Encoding of the values, by its name in MosaicML Streaming, such as `int` or `jpeg`.
    pub encoding: String,
    /// Bytes of each value; `None` if values differ in length.
    pub size: Option<u64>,
}

impl MdsIndex {
    /// Parses an `index.json` of at most 256 MiB.
    ///
    /// # Errors
    /// The text is not a valid index, or a shard is compressed or has another format.
    pub fn parse(shard: ShardBytes<'_>) -> Result<Self, FormatError> {
        let text = shard.bytes(shard.whole(), MAX_INDEX_BYTES, "index.json")?;
        let index: IndexJson = serde_json::from_slice(&text)
            .map_err(|error| shard.unexpected(0, "an index.json of MDS", error))?;
        let shards = index.shards.into_iter().map(MdsShard::parse);
        let shards = shards.collect::<Result<_, _>>().map_err(|problem| shard.error(0, problem))?;
        Ok(Self { shards })
    }
}

impl MdsShard {
    fn parse(json: ShardJson) -> Result<Self, FormatProblem> {
        if json.format != "mds" {
            return Err(FormatProblem::unexpected("the format mds", json.format));
        }
        let raw = json.raw_data.filter(|_| json.compression.is_none() && json.zip_data.is_none());
        let raw = raw.ok_or_else(|| FormatProblem::Unsupported {
            what: "a compressed shard of MDS".to_owned(),
            remedy: "write the data set with compression=None",
        })?;
        // The file must be in the folder of the index or below it, as merged indexes have it.
        let is_hidden = raw.basename.split('/').any(|part| part.starts_with('.'));
        if is_hidden || raw.basename.parse::<RelativePath>().is_err() {
            return Err(FormatProblem::unexpected("the path of a file", raw.basename));
        }
        let names = json.column_names.into_iter();
        let columns = names.zip(json.column_encodings).zip(json.column_sizes);
        let columns = columns.map(|((name, encoding), size)| MdsColumn { name, encoding, size });
        let (basename, bytes, samples) = (raw.basename, raw.bytes, json.samples);
        Ok(Self { basename, bytes, samples, columns: columns.collect() })
    }
}

#[derive(Deserialize)]
struct IndexJson {
    shards: Vec<ShardJson>,
}

#[derive(Deserialize)]
struct ShardJson {
    format: String,
    compression: Option<String>,
    samples: u32,
    raw_data: Option<FileJson>,
    zip_data: Option<FileJson>,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u64>>,
}

#[derive(Deserialize)]
struct FileJson {
    basename: String,
    bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn offsets_that_lie_are_errors() {
        for bad in [
            &[u32::MAX, 12, 12][..],
            &[1, 8, 12],
            &[1, 12, 11],
            &[1, 12, 13],
            &[1, u32::MAX, 12],
            &[],
            &[0],
        ] {
            let bytes = words(bad);
            assert!(Mds::open(ShardBytes::new(0, &bytes)).is_err(), "{bad:?}");
        }
        let bytes = words(&[2, 16, 20, 16]);
        let mds = Mds::open(ShardBytes::new(0, &bytes)).unwrap();
        let ranges: Vec<_> = mds.ranges().collect();
        assert!(matches!(ranges[..], [Err(_)]), "{ranges:?}");
    }

    #[test]
    fn an_empty_shard_has_no_samples() {
        let bytes = words(&[0, 8]);
        let mds = Mds::open(ShardBytes::new(0, &bytes)).unwrap();
        assert_eq!((mds.samples(), mds.ranges().count()), (0, 0));
    }

    fn index(shard: &str) -> Result<MdsIndex, FormatError> {
        let bytes = format!(r#"{{"shards": [{shard}], "version": 2}}"#).into_bytes();
        MdsIndex::parse(ShardBytes::new(0, &bytes))
    }

    #[test]
    fn a_compressed_or_foreign_shard_is_an_error() {
        let plain = r#"{"format": "mds", "compression": null, "samples": 1, "zip_data": null,
            "raw_data": {"basename": "NAME", "bytes": 9, "hashes": {}}}"#;
        assert_eq!(index(plain).unwrap().shards[0].bytes, 9);
        let compressed = plain.replace(r#"compression": null"#, r#"compression": "zstd""#);
        let error = index(&compressed).unwrap_err();
        assert!(error.to_string().contains("compression=None"), "{error}");
        index(&plain.replace("mds", "json")).unwrap_err();
        assert_eq!(index(&plain.replace("NAME", "0/b.mds")).unwrap().shards[0].basename, "0/b.mds");
        for name in ["../secret", "/etc/passwd", "..", "a/../../b", "a//b", "a/.b", "a\\\\b", ""] {
            index(&plain.replace("NAME", name)).unwrap_err();
        }
        index("1").unwrap_err();
    }
}

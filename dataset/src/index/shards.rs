//! Table of shards behind the records of an index.

use std::collections::BTreeMap;
use std::io::{self, Read, Seek, SeekFrom};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Error;
use super::stream::{ReadError, header};
use crate::manifest::{Crc32c, Generation};
use crate::{Name, Sample};

const MAGIC: &[u8; 8] = b"FRSHARDS";
/// Bytes of the magic and the length of the JSON text.
const PREFIX_BYTES: usize = 16;

/// Shard as an index or a source describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexShard {
    /// Exact size in bytes.
    pub bytes: u64,
    /// CRC-32C of all its bytes; `None` if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crc32c: Option<Crc32c>,
    /// Generation that its target reported. It is compared only between shards with the same UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// Name of the file or namespace, with its folders.
    pub name: Name,
    /// Number of samples of the index in the shard; 0 in the description of a source.
    pub samples: u64,
    /// UUID of the namespace, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Uuid>,
}

impl IndexShard {
    /// Creates a description with only name and size.
    pub fn new(name: Name, bytes: u64) -> Self {
        Self { bytes, crc32c: None, generation: None, name, samples: 0, uuid: None }
    }
}

/// Table of the shards of an index. Samples refer to them by their numbers in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardTable(Vec<IndexShard>);

#[derive(Serialize, Deserialize)]
struct TableJson {
    shards: Vec<IndexShard>,
}

impl ShardTable {
    /// Creates a table of these shards.
    pub fn new(shards: Vec<IndexShard>) -> Self {
        Self(shards)
    }

    /// Parses the bytes behind the records of an index. `None` for no bytes, as in files of the old
    /// form.
    ///
    /// # Errors
    /// [`Error::Table`] if the bytes are not exactly one table.
    pub fn parse(behind_records: &[u8]) -> Result<Option<Self>, Error> {
        if behind_records.is_empty() {
            return Ok(None);
        }
        let wrong = |reason: String| Error::Table { reason };
        let not_one = || wrong("it does not begin with FRSHARDS and a length".to_owned());
        let (magic, rest) = behind_records.split_first_chunk::<8>().ok_or_else(not_one)?;
        let (length, text) = rest.split_first_chunk::<8>().ok_or_else(not_one)?;
        if magic != MAGIC {
            return Err(not_one());
        }
        let length = u64::from_le_bytes(*length);
        if length != text.len() as u64 {
            return Err(wrong(format!("{} bytes follow, and not {length}", text.len())));
        }
        let table = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
        let TableJson { shards } = table;
        Ok(Some(Self(shards)))
    }

    /// Reads the table of an index file, but not its records. It changes the position of the file.
    ///
    /// # Errors
    /// The file is not an index, its table is not valid, or it cannot be read.
    pub fn read(mut file: impl Read + Seek) -> Result<Option<Self>, ReadError> {
        let found = header(&mut file)?;
        let records = found.samples.checked_mul(size_of::<Sample>() as u64);
        let begin = records.and_then(|bytes| bytes.checked_add(found.data_offset as u64));
        let end = file.seek(SeekFrom::End(0))?;
        let begin = begin.filter(|begin| *begin <= end);
        let bytes = end.saturating_sub(found.data_offset as u64);
        let begin = begin.ok_or(Error::Length { samples: found.samples, bytes })?;
        file.seek(SeekFrom::Start(begin))?;
        let mut table = Vec::new();
        file.read_to_end(&mut table)?;
        Ok(Self::parse(&table)?)
    }

    /// Returns the table as it is written behind the records.
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        let text = serde_json::to_vec(&TableJson { shards: self.0.clone() })?;
        let mut bytes = Vec::with_capacity(PREFIX_BYTES + text.len());
        bytes.extend(MAGIC);
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text);
        Ok(bytes)
    }

    /// Returns the shards, in the order of their numbers in samples.
    pub fn shards(&self) -> &[IndexShard] {
        &self.0
    }

    /// Size of each shard in bytes.
    pub fn shard_bytes(&self) -> Vec<u64> {
        self.0.iter().map(|shard| shard.bytes).collect()
    }

    /// Finds each shard in a source by its name, and returns its number there. `None` for shards
    /// without samples, which a source may lack. Several shards of one name are matched in their
    /// order.
    ///
    /// # Errors
    /// The first shard that the source lacks, or that differs there: [`Error::NotInSource`],
    /// [`Error::OtherShard`] or [`Error::Namesakes`].
    pub fn numbers_in(&self, source: &[IndexShard]) -> Result<Vec<Option<u32>>, Error> {
        let (there, own) = (by_name(source), by_name(&self.0));
        let mut seen: BTreeMap<&Name, usize> = BTreeMap::new();
        let place = |shard: &IndexShard, nth: usize| {
            let Some(found) = there.get(&shard.name) else {
                return Err(Error::NotInSource { shard: shard.name.clone(), shards: source.len() });
            };
            let own = own.get(&shard.name).map_or(0, Vec::len);
            if found.len() != own && found.len().max(own) > 1 {
                let shard = shard.name.clone();
                return Err(Error::Namesakes { shard, index: own, found: found.len() });
            }
            let number = found[nth];
            same(shard, &source[number as usize]).map(|()| Some(number))
        };
        let numbers = self.0.iter().map(|shard| {
            let nth = seen.entry(&shard.name).or_default();
            *nth += 1;
            if shard.samples == 0 { Ok(None) } else { place(shard, *nth - 1) }
        });
        numbers.collect()
    }
}

fn by_name(shards: &[IndexShard]) -> BTreeMap<&Name, Vec<u32>> {
    let mut numbers: BTreeMap<&Name, Vec<u32>> = BTreeMap::new();
    for (number, shard) in (0..).zip(shards) {
        numbers.entry(&shard.name).or_default().push(number);
    }
    numbers
}

/// Checks that nothing contradicts that a shard of the source has the bytes of the one in the
/// index.
fn same(index: &IndexShard, source: &IndexShard) -> Result<(), Error> {
    let differs = |what, index: String, found: String, shard: &Name| {
        Err(Error::OtherShard { shard: shard.clone(), what, index, found })
    };
    let name = &index.name;
    if index.bytes != source.bytes {
        return differs("size", index.bytes.to_string(), source.bytes.to_string(), name);
    }
    if let (Some(one), Some(other)) = (index.crc32c, source.crc32c) {
        let is_same = one == other;
        return if is_same {
            Ok(())
        } else {
            differs("CRC-32C", one.to_string(), other.to_string(), name)
        };
    }
    // Each target counts generations by itself; they can be compared only for the same UUID.
    let is_one = index.uuid.is_some() && index.uuid == source.uuid;
    match (index.generation, source.generation) {
        (Some(one), Some(other)) if is_one && one != other => {
            differs("generation", one.to_string(), other.to_string(), name)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(name: &str, bytes: u64) -> IndexShard {
        IndexShard { samples: 1, ..IndexShard::new(name.parse().unwrap(), bytes) }
    }

    fn table(shards: &[IndexShard]) -> ShardTable {
        ShardTable::new(shards.to_vec())
    }

    #[test]
    fn a_table_is_read_as_it_is_written() {
        let described = IndexShard {
            crc32c: Some(Crc32c(7)),
            generation: Some(Generation(1)),
            uuid: Some(Uuid::from_u128(3)),
            ..shard("x/größe.tar", 10)
        };
        let written = table(&[described, shard("b", 0)]);
        let bytes = written.to_bytes().unwrap();
        assert_eq!(&bytes[..8], b"FRSHARDS");
        assert_eq!(ShardTable::parse(&bytes).unwrap(), Some(written));
        assert_eq!(ShardTable::parse(b"").unwrap(), None);
        for end in 1..bytes.len() {
            ShardTable::parse(&bytes[..end]).unwrap_err();
        }
        ShardTable::parse(&[&bytes[..], b" "].concat()).unwrap_err();
    }

    #[test]
    fn shards_are_found_by_name_and_empty_ones_need_not_be_there() {
        let empty = IndexShard::new("b.bin".parse().unwrap(), 0);
        let index = table(&[shard("a.bin", 1), empty, shard("c.bin", 2), shard("d.bin", 2)]);
        let source = [shard("d.bin", 2), shard("index.json", 9), shard("a.bin", 1)];
        let error = index.numbers_in(&source).unwrap_err().to_string();
        assert_eq!(error, "the index has samples of c.bin, which is not among the 3 shards");
        let source = [&source[..], &[shard("c.bin", 2)]].concat();
        assert_eq!(index.numbers_in(&source), Ok(vec![Some(2), None, Some(3), Some(0)]));
    }

    #[test]
    fn the_first_difference_is_named() {
        let uuid = Some(Uuid::from_u128(1));
        let made = |generation| IndexShard {
            generation: Some(Generation(generation)),
            uuid,
            ..shard("a.bin", 5)
        };
        let error = |one: IndexShard, other: IndexShard| {
            table(&[one]).numbers_in(&[other]).unwrap_err().to_string()
        };
        assert!(
            error(made(1), shard("a.bin", 6))
                .starts_with("a.bin has the size 5 in the index, and 6")
        );
        assert!(error(made(1), made(2)).contains("generation"));
        let elsewhere = IndexShard { uuid: None, ..made(2) };
        assert_eq!(table(&[made(1)]).numbers_in(&[elsewhere]), Ok(vec![Some(0)]));
        let summed = |crc| IndexShard { crc32c: Some(Crc32c(crc)), ..made(crc.into()) };
        assert!(error(summed(1), summed(2)).contains("CRC-32C 00000001"));
        let twice = [shard("a.bin", 5), shard("a.bin", 5)];
        assert!(table(&twice).numbers_in(&twice[..1]).is_err());
        assert!(table(&twice[..1]).numbers_in(&twice).is_err());
        assert_eq!(table(&twice).numbers_in(&twice), Ok(vec![Some(0), Some(1)]));
    }
}

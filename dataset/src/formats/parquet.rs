//! Parquet: the footer, which contains the positions of the column chunks of all row groups.
//!
//! The footer is a structure of Thrift's compact protocol; four of its fields are needed. The crate
//! `parquet` (60.1) is not used: it follows the schema by recursion, so that a footer of 1.2 MB
//! overflows the stack, and it takes 75 s to compile.

mod thrift;

use self::thrift::{Compact, ThriftError, ThriftField};
use super::error::{FormatError, FormatProblem};
use super::sample::{KeyedSample, SampleMember};
use super::shard::{ByteRange, ShardBytes};

/// First and last bytes of a file.
pub(super) const MAGIC: &[u8; 4] = b"PAR1";
/// First and last bytes of a file with an encrypted footer.
pub(super) const ENCRYPTED_MAGIC: &[u8; 4] = b"PARE";
/// Limit above any real footer: 10^4 row groups with 100 columns take about 150 MB.
const MAX_FOOTER_BYTES: u64 = 256 << 20;

/// Row group of a Parquet file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroup {
    /// Number of rows in the group.
    pub rows: u64,
    /// Column chunks, in the order of the schema.
    pub columns: Vec<ColumnChunk>,
}

/// Column chunk: the values of one column in a row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnChunk {
    /// Path of the column in the schema, with dots between its parts.
    pub path: String,
    /// Byte range of the pages of the chunk, dictionary page included.
    pub range: ByteRange,
}

/// Reads the footer of a Parquet file and returns its row groups.
///
/// # Errors
/// The file is not a Parquet file or is encrypted, or its footer is not valid.
pub fn row_groups(shard: ShardBytes<'_>) -> Result<Vec<RowGroup>, FormatError> {
    let end = shard.whole().end();
    shard.range(0, 12, "a Parquet file")?;
    let tail = shard.array::<8>(end - 8, "the end of a Parquet file")?;
    let (length, magic) = tail.split_at(4);
    if magic == ENCRYPTED_MAGIC {
        let what = "an encrypted footer".to_owned();
        let remedy = "write the file with a plaintext footer";
        return Err(shard.error(end - 4, FormatProblem::Unsupported { what, remedy }));
    }
    if magic != MAGIC {
        return Err(shard.unexpected(end - 4, "the magic PAR1", magic.escape_ascii()));
    }
    let length = u32::from_le_bytes(length.try_into().expect("4 bytes")).into();
    let too_long = || shard.unexpected(end - 8, "a footer inside the file", length);
    let begin = (end - 8).checked_sub(length).ok_or_else(too_long)?;
    let footer = shard.range(begin, length, "a footer of Parquet")?;
    let bytes = shard.bytes(footer, MAX_FOOTER_BYTES, "a footer of Parquet")?;
    Footer { shard, begin, compact: Compact::new(&bytes) }.row_groups()
}

/// Returns the row groups as samples, with their column chunks as members.
pub(super) fn samples(
    shard: ShardBytes<'_>,
) -> Result<impl Iterator<Item = Result<KeyedSample, FormatError>>, FormatError> {
    Ok(row_groups(shard)?.into_iter().map(move |group| sample(shard, group)))
}

fn sample(shard: ShardBytes<'_>, group: RowGroup) -> Result<KeyedSample, FormatError> {
    let ranges = || group.columns.iter().map(|column| column.range);
    let begin = ranges().map(ByteRange::offset).min().unwrap_or(0);
    let end = ranges().map(ByteRange::end).max().unwrap_or(0);
    let sample = shard.sample(shard.range(begin, end - begin, "a row group")?)?;
    let member = |column: ColumnChunk| SampleMember { name: column.path, range: column.range };
    let members = group.columns.into_iter().map(member).collect();
    Ok(KeyedSample { sample, key: None, members })
}

struct Footer<'a, 'b> {
    shard: ShardBytes<'a>,
    begin: u64,
    compact: Compact<'b>,
}

/// Fields of `ColumnMetaData` that determine a column chunk.
#[derive(Default)]
struct ColumnFields {
    path: Option<String>,
    bytes: Option<i64>,
    data_page: Option<i64>,
    dictionary_page: Option<i64>,
}

impl<'b> Footer<'_, 'b> {
    fn row_groups(mut self) -> Result<Vec<RowGroup>, FormatError> {
        let mut groups = Vec::new();
        self.fields(|this, field| match field {
            ThriftField { id: 4, .. } => {
                for _ in 0..this.list(field)? {
                    groups.push(this.row_group()?);
                }
                Ok(())
            }
            field => this.skip(field),
        })?;
        Ok(groups)
    }

    fn row_group(&mut self) -> Result<RowGroup, FormatError> {
        let (mut columns, mut rows) = (Vec::new(), None);
        self.fields(|this, field| match field.id {
            1 => {
                for _ in 0..this.list(field)? {
                    columns.push(this.column_chunk()?);
                }
                Ok(())
            }
            3 => {
                rows = Some(this.integer(field)?);
                Ok(())
            }
            _ => this.skip(field),
        })?;
        let rows = rows.and_then(|rows| u64::try_from(rows).ok());
        let rows = rows.ok_or_else(|| self.unexpected("a number of rows", "none"))?;
        Ok(RowGroup { rows, columns })
    }

    fn column_chunk(&mut self) -> Result<ColumnChunk, FormatError> {
        let mut column = None;
        self.fields(|this, field| match field.id {
            1 => Err(this.unexpected("columns in this file", "one in another file")),
            3 => {
                this.check(Compact::structure(field))?;
                column = Some(this.column_fields()?);
                Ok(())
            }
            _ => this.skip(field),
        })?;
        let column = column.ok_or_else(|| self.unexpected("metadata of a column", "none"))?;
        self.chunk(column)
    }

    fn column_fields(&mut self) -> Result<ColumnFields, FormatError> {
        let mut column = ColumnFields::default();
        self.fields(|this, field| match field.id {
            3 => {
                let mut path = String::new();
                for part in 0..this.list(field)? {
                    if part > 0 {
                        path.push('.');
                    }
                    path += this.text()?;
                }
                column.path = Some(path);
                Ok(())
            }
            7 => this.integer(field).map(|bytes| column.bytes = Some(bytes)),
            9 => this.integer(field).map(|offset| column.data_page = Some(offset)),
            11 => this.integer(field).map(|offset| column.dictionary_page = Some(offset)),
            _ => this.skip(field),
        })?;
        Ok(column)
    }

    fn chunk(&self, column: ColumnFields) -> Result<ColumnChunk, FormatError> {
        let missing = || self.unexpected("path, length and first page of a column", "not all");
        let (Some(path), Some(bytes), Some(data_page)) =
            (column.path, column.bytes, column.data_page)
        else {
            return Err(missing());
        };
        // Some writers store 0 if there is no dictionary page.
        let dictionary = column.dictionary_page.filter(|offset| *offset > 0);
        let begin = dictionary.map_or(data_page, |dictionary| dictionary.min(data_page));
        let (Ok(begin), Ok(bytes)) = (u64::try_from(begin), u64::try_from(bytes)) else {
            return Err(self.unexpected("an offset and a length of a column", "a negative one"));
        };
        Ok(ColumnChunk { path, range: self.shard.range(begin, bytes, "a column chunk")? })
    }

    /// Calls `each` for every field of a structure. `each` must read or skip the value.
    fn fields(
        &mut self,
        mut each: impl FnMut(&mut Self, ThriftField) -> Result<(), FormatError>,
    ) -> Result<(), FormatError> {
        let mut last = 0;
        while let Some(field) = self.compact.field(&mut last).map_err(|error| self.failed(error))? {
            each(self, field)?;
        }
        Ok(())
    }

    fn list(&mut self, field: ThriftField) -> Result<usize, FormatError> {
        let length = self.compact.list(field);
        length.map_err(|error| self.failed(error))
    }

    fn integer(&mut self, field: ThriftField) -> Result<i64, FormatError> {
        let integer = self.compact.integer(field);
        integer.map_err(|error| self.failed(error))
    }

    fn text(&mut self) -> Result<&'b str, FormatError> {
        let bytes = self.compact.binary().map_err(|error| self.failed(error))?;
        str::from_utf8(bytes).map_err(|error| self.unexpected("a name in UTF-8", error))
    }

    fn skip(&mut self, field: ThriftField) -> Result<(), FormatError> {
        let skipped = self.compact.skip(field);
        self.check(skipped)
    }

    fn check(&self, result: Result<(), ThriftError>) -> Result<(), FormatError> {
        result.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: ThriftError) -> FormatError {
        self.unexpected("a footer of Parquet", error)
    }

    fn unexpected(&self, expected: &'static str, found: impl ToString) -> FormatError {
        self.shard.unexpected(self.begin + self.compact.position(), expected, found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(footer: &[u8]) -> Vec<u8> {
        let length = (footer.len() as u32).to_le_bytes();
        [MAGIC, footer, &length, MAGIC].concat()
    }

    fn read(footer: &[u8]) -> Result<Vec<RowGroup>, FormatError> {
        row_groups(ShardBytes::new(0, &file(footer)))
    }

    #[test]
    fn a_footer_length_that_lies_is_an_error() {
        let mut bytes = file(&[0]);
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        row_groups(ShardBytes::new(0, &bytes)).unwrap_err();
        assert_eq!(read(&[0]).unwrap(), []);
    }

    #[test]
    fn lists_that_lie_and_deep_structures_are_errors() {
        // ThriftField 4, a list of 2^32 - 1 structures.
        read(&[0x49, 0xFC, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0]).unwrap_err();
        // ThriftField 2, a list of 2^32 - 1 booleans, each of one byte.
        read(&[0x29, 0xF1, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F, 0]).unwrap_err();
        // ThriftField 1, a binary of 2^64 - 1 bytes.
        let mut binary = vec![0x18];
        binary.extend([0xFF; 9]);
        binary.extend([1, 0]);
        read(&binary).unwrap_err();
        // A structure in a structure, and so on; a list in a list, and so on.
        read(&[0x1C; 2_000_000]).unwrap_err();
        read(&[&[0x19][..], &[0x19; 2_000_000]].concat()).unwrap_err();
        // A schema that is nested 200,000 times, as the fields of its elements say, is only
        // skipped.
        let mut nested = vec![0x29, 0xFC, 0xC0, 0x9A, 0x0C];
        nested.extend([0x48, 1, b'a', 0x15, 2, 0].repeat(200_000));
        nested.extend([0x29, 0x0C, 0]);
        assert_eq!(read(&nested).unwrap(), []);
    }
}

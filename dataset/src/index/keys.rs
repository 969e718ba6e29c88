//! `keys.npz`: the keys and members of the samples of an index.
//!
//! The file is an archive of NumPy's format with stored arrays, as `numpy.savez` writes it. Texts
//! follow each other in UTF-8, and text `i` is bytes `offsets[i]` to `offsets[i + 1]`, as in Apache
//! Arrow. A sample without a key has an empty one. Its members are rows `member_rows[i]` to
//! `member_rows[i + 1]` of the arrays of members:
//!
//! | array | dtype | length | what |
//! |---|---|---|---|
//! | `key_offsets` | `<i8` | samples + 1 | where keys begin and end |
//! | `key_bytes` | `u1` | | the keys |
//! | `member_rows` | `<i8` | samples + 1 | where members of samples begin and end |
//! | `member_name` | `<u4` | members | number of the name |
//! | `member_begin` | `<u8` | members | first byte in the shard |
//! | `member_length` | `<u8` | members | number of bytes |
//! | `name_offsets` | `<i8` | names + 1 | where names begin and end |
//! | `name_bytes` | `u1` | | the names, each once |

use std::collections::BTreeMap;
use std::io::{self, Seek, Write};

use zerocopy::byteorder::little_endian::{I64, U32, U64};
use zerocopy::{Immutable, IntoBytes};
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, result::ZipError};

use super::header::array_header;
use crate::formats::KeyedSample;

/// Keys and members of samples, in the order of an index.
#[derive(Clone, Debug, Default)]
pub struct SampleKeys {
    keys: Texts,
    member_rows: PartOffsets,
    members: MemberColumns,
    names: Texts,
    /// Index in `names` of each name.
    numbers: BTreeMap<String, u32>,
}

#[derive(Clone, Debug, Default)]
struct MemberColumns {
    name: Vec<U32>,
    begin: Vec<U64>,
    length: Vec<U64>,
}

/// Offsets of consecutive parts, and the end of the last one: one number more than parts.
#[derive(Clone, Debug)]
struct PartOffsets(Vec<I64>);

#[derive(Clone, Debug, Default)]
struct Texts {
    offsets: PartOffsets,
    bytes: Vec<u8>,
}

/// One of the arrays of `keys.npz`.
#[derive(Clone, Copy, Debug)]
pub struct KeyArray<'a> {
    /// Name of the array in the archive.
    pub name: &'static str,
    /// Data type of its elements as NumPy writes it, such as `<i8`.
    pub dtype: &'static str,
    /// Bytes of all elements, as in the file.
    pub bytes: &'a [u8],
    /// Number of elements in the array.
    pub length: usize,
}

impl SampleKeys {
    /// Appends the key and the members of the next sample.
    pub fn append(&mut self, sample: &KeyedSample) {
        self.keys.append(sample.key.as_deref().unwrap_or_default());
        for member in &sample.members {
            let name = self.number(&member.name);
            self.members.name.push(name.into());
            self.members.begin.push(member.range.offset().into());
            self.members.length.push(member.range.length().into());
        }
        self.member_rows.append(self.members.name.len());
    }

    /// Number of samples that were added.
    pub fn samples(&self) -> usize {
        self.keys.offsets.0.len() - 1
    }

    /// Returns the arrays of the file, in its order.
    pub fn arrays(&self) -> [KeyArray<'_>; 8] {
        let Self { keys, member_rows, members, names, .. } = self;
        [
            array("key_offsets", "<i8", &keys.offsets.0),
            array("key_bytes", "|u1", &keys.bytes),
            array("member_rows", "<i8", &member_rows.0),
            array("member_name", "<u4", &members.name),
            array("member_begin", "<u8", &members.begin),
            array("member_length", "<u8", &members.length),
            array("name_offsets", "<i8", &names.offsets.0),
            array("name_bytes", "|u1", &names.bytes),
        ]
    }

    /// Writes the archive at the position of `file`, and returns `file`.
    ///
    /// # Errors
    /// The first error of `file`.
    pub fn write<W: Write + Seek>(&self, file: W) -> io::Result<W> {
        let mut archive = ZipWriter::new(file);
        // numpy.savez uses the long form for all members.
        let options = SimpleFileOptions::default().large_file(true);
        let options = options.compression_method(CompressionMethod::Stored);
        for array in self.arrays() {
            archive.start_file(format!("{}.npy", array.name), options).map_err(io_error)?;
            archive.write_all(&array_header(&format!("'{}'", array.dtype), array.length as u64))?;
            archive.write_all(array.bytes)?;
        }
        archive.finish().map_err(io_error)
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        // Names are extensions or columns: memory cannot hold 2^32 of them.
        let number = self.numbers.len() as u32;
        self.numbers.insert(name.to_owned(), number);
        self.names.append(name);
        number
    }
}

impl Default for PartOffsets {
    fn default() -> Self {
        Self(vec![0.into()])
    }
}

impl PartOffsets {
    fn append(&mut self, end: usize) {
        // The length of data in memory is below 2^63.
        self.0.push((end as i64).into());
    }
}

impl Texts {
    fn append(&mut self, text: &str) {
        self.bytes.extend_from_slice(text.as_bytes());
        self.offsets.append(self.bytes.len());
    }
}

fn array<'a, T: IntoBytes + Immutable>(
    name: &'static str,
    dtype: &'static str,
    elements: &'a [T],
) -> KeyArray<'a> {
    KeyArray { name, dtype, bytes: elements.as_bytes(), length: elements.len() }
}

fn io_error(error: ZipError) -> io::Error {
    match error {
        ZipError::Io(error) => error,
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::formats::{ShardBytes, ShardFormat, ShardSource, npz_arrays};

    #[test]
    fn keys_and_members_are_arrays_of_an_npz() {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in [("a.cls", &b"1"[..]), ("a.jpg", b"jpeg"), ("é.cls", b"22")] {
            let mut header = tar::Header::new_ustar();
            header.set_size(content.len() as u64);
            builder.append_data(&mut header, path, content).unwrap();
        }
        let bytes = builder.into_inner().unwrap();
        let shard = ShardSource::alone(ShardBytes::new(0, &bytes));
        let mut keys = SampleKeys::default();
        for sample in ShardFormat::WebDataset.samples(shard, &Default::default()).unwrap() {
            keys.append(&sample.unwrap());
        }
        keys.append(&crate::Sample::default().into());
        assert_eq!(keys.samples(), 3);

        let file = keys.write(Cursor::new(Vec::new())).unwrap().into_inner();
        let file = ShardBytes::new(0, &file);
        let arrays = npz_arrays(file).unwrap();
        let names: Vec<&str> = arrays.iter().map(|array| array.name.as_str()).collect();
        assert_eq!(names, keys.arrays().map(|array| array.name));
        let read = |number: usize| {
            let items = arrays[number].npy.items();
            let mut bytes = vec![0; items.length() as usize];
            file.read(items.offset(), &mut bytes, "an array").unwrap();
            bytes
        };
        assert_eq!(read(0), [0_i64, 1, 3, 3].map(i64::to_le_bytes).concat());
        assert_eq!(read(1), "aé".as_bytes());
        assert_eq!(read(2), [0_i64, 2, 3, 3].map(i64::to_le_bytes).concat());
        assert_eq!(read(3), [0_u32, 1, 0].map(u32::to_le_bytes).concat());
        assert_eq!(read(4), [512_u64, 1536, 2560].map(u64::to_le_bytes).concat());
        assert_eq!(read(5), [1_u64, 4, 2].map(u64::to_le_bytes).concat());
        assert_eq!(read(7), b"clsjpg");
    }

    #[test]
    fn no_samples_are_a_file_as_well() {
        let file = SampleKeys::default().write(Cursor::new(Vec::new())).unwrap().into_inner();
        assert_eq!(npz_arrays(ShardBytes::new(0, &file)).unwrap().len(), 8);
    }
}

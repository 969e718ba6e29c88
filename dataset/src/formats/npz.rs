//! npz: a zip archive of numpy arrays.

use std::io::{self, BufReader, Read, Seek, SeekFrom};

use zip::read::ZipArchive;
use zip::result::ZipError;
use zip::{CompressionMethod, read::ZipFile};

use super::error::{FormatError, FormatProblem, printable};
use super::npy::Npy;
use super::shard::{ByteRange, ShardBytes};

/// Array in an npz archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpzArray {
    /// Keyword with which the array was saved.
    pub name: String,
    /// Header of the array, and the position of its rows.
    pub npy: Npy,
}

/// Returns the arrays of an archive, in the order of its central directory.
///
/// # Errors
/// The archive is not valid, or a member is compressed, encrypted, overlaps another, or is no array
/// whose rows can be read.
pub fn npz_arrays(shard: ShardBytes<'_>) -> Result<Vec<NpzArray>, FormatError> {
    let reader = BufReader::new(ShardReader { shard, position: 0 });
    let mut archive = ZipArchive::new(reader).map_err(|error| failed(shard, error))?;
    let members = (0..archive.len()).map(|number| {
        let member = archive.by_index_raw(number).map_err(|error| failed(shard, error))?;
        stored(shard, &member)
    });
    let members = members.collect::<Result<Vec<_>, _>>()?;
    check_disjoint(shard, &members)?;
    let array = |(name, data): (String, ByteRange)| {
        let name = name.strip_suffix(".npy").map(str::to_owned).unwrap_or(name);
        Ok(NpzArray { name, npy: Npy::open(shard, data)? })
    };
    members.into_iter().map(array).collect()
}

/// Checks that no two members overlap: a directory whose entries of 46 bytes refer to the same data
/// again and again would make a short file as expensive as a long one.
fn check_disjoint(
    shard: ShardBytes<'_>,
    members: &[(String, ByteRange)],
) -> Result<(), FormatError> {
    let mut ranges: Vec<ByteRange> = members.iter().map(|(_, data)| *data).collect();
    ranges.sort_unstable();
    match ranges.windows(2).find(|pair| pair[0].end() > pair[1].offset()) {
        Some(pair) => {
            let expected = "members of a zip archive that do not share bytes";
            Err(shard.unexpected(pair[1].offset(), expected, "two members"))
        }
        None => Ok(()),
    }
}

/// Returns the name and the byte range of a member, which must not be compressed.
fn stored<R: Read>(
    shard: ShardBytes<'_>,
    member: &ZipFile<'_, R>,
) -> Result<(String, ByteRange), FormatError> {
    let at = member.header_start();
    let name = member.name().map_err(|error| failed(shard, error))?.into_owned();
    let stored = member.compression() == CompressionMethod::Stored && !member.encrypted();
    if !stored {
        return Err(shard.error(
            at,
            FormatProblem::Unsupported {
                what: format!("the compressed member {}", printable(&name)),
                remedy: "write the archive with numpy.savez, not savez_compressed",
            },
        ));
    }
    let begin = member.data_start().ok_or_else(|| shard.unexpected(at, "a member", "none"))?;
    let data = shard.range(begin, member.compressed_size(), "a member of a zip archive")?;
    Ok((name, data))
}

/// Converts an error of the crate `zip`. It has no position, so the end of the file, where the
/// directory is, is reported.
fn failed(shard: ShardBytes<'_>, error: ZipError) -> FormatError {
    match error {
        ZipError::Io(error) => shard.error(0, FormatProblem::Read(error)),
        error => shard.unexpected(shard.whole().end(), "a directory of a zip archive", error),
    }
}

/// Adapter with which the crate `zip` reads a shard.
struct ShardReader<'a> {
    shard: ShardBytes<'a>,
    position: u64,
}

impl Read for ShardReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.shard.whole().end().saturating_sub(self.position);
        let length = left.min(into.len() as u64) as usize;
        let read = self.shard.read(self.position, &mut into[..length], "a zip archive");
        read.map_err(io::Error::other)?;
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for ShardReader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
            SeekFrom::End(distance) => self.shard.whole().end().checked_add_signed(distance),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The end of an archive with 64-bit fields: what it says of its directory.
    fn zip64_end(files: u64, directory_bytes: u64, directory_at: u64) -> Vec<u8> {
        let mut bytes = b"PK\x06\x06".to_vec();
        bytes.extend(44_u64.to_le_bytes());
        bytes.extend([45, 0, 45, 0]);
        bytes.extend([0; 8]);
        for field in [files, files, directory_bytes, directory_at] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(b"PK\x06\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0");
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        bytes.extend([0xFF; 12]);
        bytes.extend([0; 2]);
        bytes
    }

    /// A zip archive of one stored member, which its directory names so many times.
    fn archive(member: &[u8], times: u16) -> Vec<u8> {
        let sizes = [member.len() as u32; 2].map(u32::to_le_bytes).concat();
        let common = |name: &str| {
            let name_length = (name.len() as u16).to_le_bytes();
            [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &sizes, &name_length].concat()
        };
        let mut bytes = [b"PK\x03\x04", &common("x.npy")[..], &[0, 0], b"x.npy", member].concat();
        let directory_at = bytes.len() as u32;
        for number in 0..times {
            let name = format!("{number:05}");
            bytes.extend([b"PK\x01\x02", &[20, 0][..], &common(&name)].concat());
            bytes.extend([0; 16]);
            bytes.extend(name.as_bytes());
        }
        let directory_bytes = bytes.len() as u32 - directory_at;
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        bytes.extend([times, times].map(u16::to_le_bytes).concat());
        bytes.extend([directory_bytes, directory_at].map(u32::to_le_bytes).concat());
        bytes.extend([0, 0]);
        bytes
    }

    #[test]
    fn members_that_share_bytes_are_an_error() {
        let header = "{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }";
        let length = (header.len() as u16).to_le_bytes();
        let npy = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &[7]].concat();
        let bytes = archive(&npy, 1);
        let arrays = npz_arrays(ShardBytes::new(0, &bytes)).unwrap();
        assert_eq!((arrays.len(), arrays[0].npy.rows()), (1, 1));
        let bytes = archive(&npy, 2);
        let error = npz_arrays(ShardBytes::new(0, &bytes)).unwrap_err();
        assert!(error.to_string().contains("do not share bytes"), "{error}");
    }

    #[test]
    fn a_directory_that_lies_is_an_error_and_no_allocation() {
        for (files, bytes, at) in [
            (1 << 40, 1 << 50, 1 << 60),
            (u64::MAX, u64::MAX, u64::MAX),
            (1 << 36, 1 << 42, 1 << 40),
            (1 << 30, 1 << 40, 0),
            (1, 46, 0),
        ] {
            let bytes = zip64_end(files, bytes, at);
            npz_arrays(ShardBytes::new(0, &bytes)).unwrap_err();
        }
    }
}

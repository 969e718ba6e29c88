//! BLAKE3 hashes of manifests and indexes.

use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

use crate::text::as_text;

/// BLAKE3 hash (32 bytes). Its text form is `blake3:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blake3Hash(blake3::Hash);

as_text!(Blake3Hash);

const PREFIX: &str = "blake3:";

impl Blake3Hash {
    /// Hashes bytes in memory. The result for a file's contents is what `b3sum` prints.
    pub fn of(bytes: &[u8]) -> Self {
        Self(blake3::hash(bytes))
    }

    /// Hashes all that a reader returns until its end, with at most 64 KiB in memory at a time.
    ///
    /// # Errors
    /// The first error of the reader.
    pub fn of_reader(reader: impl Read) -> io::Result<Self> {
        HashingReader::new(reader).finish()
    }

    /// Returns the first 8 bytes of the hash as a little-endian number, for keys that are the same
    /// on every machine.
    pub(crate) fn key(self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = *self.0.as_bytes();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Reader that computes the BLAKE3 hash of all bytes read through it.
#[derive(Debug)]
pub struct HashingReader<R> {
    reader: R,
    hasher: blake3::Hasher,
}

impl<R: Read> HashingReader<R> {
    /// Wraps a reader. Bytes that were read from it before are not part of the hash.
    pub fn new(reader: R) -> Self {
        Self { reader, hasher: blake3::Hasher::new() }
    }

    /// Reads the remaining bytes, and returns the hash of all bytes since [`new`](Self::new).
    ///
    /// # Errors
    /// The first error of the reader.
    pub fn finish(mut self) -> io::Result<Blake3Hash> {
        self.hasher.update_reader(self.reader)?;
        Ok(Blake3Hash(self.hasher.finalize()))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.reader.read(into)?;
        self.hasher.update(&into[..length]);
        Ok(length)
    }
}

impl FromStr for Blake3Hash {
    type Err = InvalidHash;

    fn from_str(text: &str) -> Result<Self, InvalidHash> {
        let digits = text.strip_prefix(PREFIX).ok_or(InvalidHash)?;
        blake3::Hash::from_hex(digits).map(Self).map_err(|_| InvalidHash)
    }
}

impl fmt::Display for Blake3Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0.to_hex())
    }
}

/// Error: a text is not `blake3:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a hash is \"blake3:\" and 64 hexadecimal digits")]
pub struct InvalidHash;

#[cfg(test)]
mod tests {
    use super::*;

    /// BLAKE3's official test vector for an input of length 0.
    const EMPTY: &str = "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

    #[test]
    fn a_reader_has_the_hash_of_its_bytes() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|i| (i ^ (i >> 9)) as u8).collect();
        assert_eq!(Blake3Hash::of_reader(&bytes[..]).unwrap(), Blake3Hash::of(&bytes));
        assert_eq!(Blake3Hash::of_reader(&b""[..]).unwrap(), Blake3Hash::of(b""));
        let mut reader = HashingReader::new(&bytes[..]);
        reader.read_exact(&mut [0; 77]).unwrap();
        assert_eq!(reader.finish().unwrap(), Blake3Hash::of(&bytes));
        struct Broken;
        impl Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                Err(io::ErrorKind::Other.into())
            }
        }
        assert!(Blake3Hash::of_reader(Broken).is_err());
    }

    #[test]
    fn hashes_are_text() {
        assert_eq!(Blake3Hash::of(b"").to_string(), EMPTY);
        assert_eq!(EMPTY.parse(), Ok(Blake3Hash::of(b"")));
        assert_eq!(Blake3Hash::of(b"").key(), 0xA6A1_F9F5_B949_13AF);
        for text in ["", "blake3:", &EMPTY[7..], &EMPTY[..70], &format!("{EMPTY}0")] {
            assert_eq!(text.parse::<Blake3Hash>(), Err(InvalidHash), "{text}");
        }
    }
}

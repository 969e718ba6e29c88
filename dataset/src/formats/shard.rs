//! Bytes of a shard, with its number for errors and samples.

use core::fmt;
use core::iter;

use super::error::{FormatError, FormatProblem};
use super::read_at::ReadAt;
use crate::Sample;

/// Bytes of a read if the format is read from beginning to end.
const WINDOW_BYTES: u64 = 64 << 10;
/// Bytes of a read if most of the shard is skipped.
const SKIPPING_WINDOW_BYTES: u64 = 4 << 10;

/// Byte range that lies within its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteRange {
    offset: u64,
    length: u64,
}

impl ByteRange {
    /// Offset of the first byte in the shard.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Number of bytes in the range.
    pub fn length(self) -> u64 {
        self.length
    }

    /// Offset of the first byte behind the range.
    pub fn end(self) -> u64 {
        self.offset + self.length
    }

    /// Returns `length` bytes at `offset` in this range; `None` if they are not within it.
    pub(super) fn part(self, offset: u64, length: u64) -> Option<Self> {
        let inside = offset.checked_add(length)? <= self.length;
        inside.then_some(Self { offset: self.offset + offset, length })
    }
}

/// Shard to be read, with its number.
#[derive(Clone, Copy)]
pub struct ShardBytes<'a> {
    number: u32,
    bytes: &'a dyn ReadAt,
}

impl<'a> ShardBytes<'a> {
    /// `number` is copied into samples and errors.
    pub fn new(number: u32, bytes: &'a dyn ReadAt) -> Self {
        Self { number, bytes }
    }

    /// Number that the caller gave the shard.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Byte range of the whole shard.
    pub fn whole(self) -> ByteRange {
        ByteRange { offset: 0, length: self.bytes.len() }
    }

    /// Checks that a range lies within the shard, and returns it.
    ///
    /// # Errors
    /// The shard is truncated, or a length in it is wrong. `expected` describes the range in the
    /// error.
    pub fn range(
        self,
        offset: u64,
        length: u64,
        expected: &'static str,
    ) -> Result<ByteRange, FormatError> {
        let end = self.bytes.len();
        let inside = offset.checked_add(length).is_some_and(|behind| behind <= end);
        let truncated = || self.error(offset, FormatProblem::Truncated { expected, length, end });
        inside.then_some(ByteRange { offset, length }).ok_or_else(truncated)
    }

    /// Fills `into` with the bytes at `offset`.
    ///
    /// # Errors
    /// The shard is too short, or cannot be read. `expected` describes the bytes in the error.
    pub fn read(
        self,
        offset: u64,
        into: &mut [u8],
        expected: &'static str,
    ) -> Result<(), FormatError> {
        self.range(offset, into.len() as u64, expected)?;
        let read = self.bytes.read_at(offset, into);
        read.map_err(|error| self.error(offset, FormatProblem::Read(error)))
    }

    /// Computes the CRC-32C of a byte range.
    ///
    /// # Errors
    /// The shard cannot be read.
    pub fn crc32c(self, range: ByteRange) -> Result<u32, FormatError> {
        let mut buffer = vec![0; range.length.min(1 << 20) as usize];
        let (mut offset, mut crc) = (range.offset, 0);
        while offset < range.end() {
            let length = (range.end() - offset).min(1 << 20) as usize;
            self.read(offset, &mut buffer[..length], "a sample")?;
            crc = crc32c::crc32c_append(crc, &buffer[..length]);
            offset += length as u64;
        }
        Ok(crc)
    }

    /// Reads a range of at most `limit` bytes, which bounds the allocation.
    pub(super) fn bytes(
        self,
        range: ByteRange,
        limit: u64,
        expected: &'static str,
    ) -> Result<Vec<u8>, FormatError> {
        if range.length > limit {
            let found = format!("{} bytes, which is more than {limit}", range.length);
            return Err(self.error(range.offset, FormatProblem::unexpected(expected, found)));
        }
        let mut bytes = vec![0; range.length as usize];
        self.read(range.offset, &mut bytes, expected)?;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(
        self,
        offset: u64,
        expected: &'static str,
    ) -> Result<[u8; N], FormatError> {
        let mut array = [0; N];
        self.read(offset, &mut array, expected)?;
        Ok(array)
    }

    pub(super) fn error(self, offset: u64, problem: FormatProblem) -> FormatError {
        FormatError { shard: self.number, offset, problem }
    }

    /// Creates the error that something other than `expected` is at `offset`.
    pub(super) fn unexpected(
        self,
        offset: u64,
        expected: &'static str,
        found: impl ToString,
    ) -> FormatError {
        self.error(offset, FormatProblem::unexpected(expected, found))
    }

    pub(super) fn sample(self, range: ByteRange) -> Result<Sample, FormatError> {
        let ByteRange { offset, length } = range;
        let too_long = |_| self.error(offset, FormatProblem::TooLong { length });
        let length = u32::try_from(length).map_err(too_long)?;
        Ok(Sample {
            shard: self.number.into(),
            length: length.into(),
            offset: offset.into(),
            crc32c: 0.into(),
        })
    }
}

impl fmt::Debug for ShardBytes<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = formatter.debug_struct("ShardBytes");
        text.field("number", &self.number).field("len", &self.bytes.len()).finish()
    }
}

/// Reader of small parts in ascending order, which reads larger pieces of the shard at a time.
#[derive(Debug)]
pub(super) struct ShardWindow<'a> {
    shard: ShardBytes<'a>,
    offset: u64,
    bytes: Vec<u8>,
}

impl<'a> ShardWindow<'a> {
    pub(super) fn new(shard: ShardBytes<'a>) -> Self {
        Self { shard, offset: 0, bytes: Vec::new() }
    }

    pub(super) fn shard(&self) -> ShardBytes<'a> {
        self.shard
    }

    /// Returns the `N` bytes at `offset`; `N` is at most 4,096.
    pub(super) fn array<const N: usize>(
        &mut self,
        offset: u64,
        expected: &'static str,
    ) -> Result<[u8; N], FormatError> {
        const { assert!(N as u64 <= SKIPPING_WINDOW_BYTES) };
        let wanted = self.shard.range(offset, N as u64, expected)?;
        if offset < self.offset || wanted.end() > self.end() {
            self.load(offset, expected)?;
        }
        let begin = (offset - self.offset) as usize;
        Ok(self.bytes[begin..begin + N].try_into().expect("as long as the slice"))
    }

    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn load(&mut self, offset: u64, expected: &'static str) -> Result<(), FormatError> {
        let skipped = offset.abs_diff(self.end());
        let wanted = if skipped < WINDOW_BYTES { WINDOW_BYTES } else { SKIPPING_WINDOW_BYTES };
        let room = self.shard.whole().length - offset;
        self.bytes.resize(wanted.min(room) as usize, 0);
        self.offset = offset;
        let read = self.shard.read(offset, &mut self.bytes, expected);
        // The buffer is cleared after a failed read, since part of it may be overwritten.
        read.inspect_err(|_| self.bytes.clear())
    }
}

/// Iterates over the results of `next` until it returns `None` or an error.
pub(super) fn until_error<T>(
    mut next: impl FnMut() -> Result<Option<T>, FormatError>,
) -> impl Iterator<Item = Result<T, FormatError>> {
    let mut ended = false;
    iter::from_fn(move || {
        if ended {
            return None;
        }
        let item = next().transpose();
        ended = !matches!(item, Some(Ok(_)));
        item
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_range_past_the_end_names_it() {
        let bytes = vec![0; 10];
        let shard = ShardBytes::new(3, &bytes);
        for (offset, length) in [(0, 11), (10, 1), (u64::MAX, 2), (1, u64::MAX)] {
            let error = shard.range(offset, length, "a header").unwrap_err();
            assert_eq!((error.shard, error.offset), (3, offset));
            assert!(error.to_string().contains("a header"), "{error}");
        }
        assert_eq!(shard.range(10, 0, "nothing").unwrap().end(), 10);
    }

    #[test]
    fn a_sample_of_4_gib_is_too_long() {
        let bytes = Vec::new();
        let range = ByteRange { offset: 7, length: 1 << 32 };
        let error = ShardBytes::new(0, &bytes).sample(range).unwrap_err();
        assert!(matches!(error.problem, FormatProblem::TooLong { length: 0x1_0000_0000 }));
    }

    proptest! {
        #[test]
        fn a_window_shows_what_is_there(offsets in prop::collection::vec(0_u64..200_000, 1..20)) {
            let bytes: Vec<u8> = (0..200_004_u32).map(|i| (i ^ (i >> 8)) as u8).collect();
            let mut window = ShardWindow::new(ShardBytes::new(0, &bytes));
            for offset in offsets {
                let begin = offset as usize;
                let shown = window.array::<4>(offset, "four bytes").unwrap();
                prop_assert_eq!(&shown, &bytes[begin..begin + 4]);
            }
        }
    }
}

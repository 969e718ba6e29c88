//! TFRecord: a sequence of records.
//!
//! Each record consists of its length (64 bits), the masked CRC-32C of the length (32 bits), the
//! data, and the masked CRC-32C of the data (32 bits), all little-endian.

use super::error::{FormatError, FormatProblem};
use super::shard::{ShardBytes, ShardWindow, until_error};
use crate::Sample;

const HEADER_BYTES: u64 = 12;
const FOOTER_BYTES: u64 = 4;

/// Returns the data of each record. With `verify` its checksum is compared and stored in the
/// sample.
pub(super) fn samples(
    shard: ShardBytes<'_>,
    verify: bool,
) -> impl Iterator<Item = Result<Sample, FormatError>> {
    let mut records = TfRecords { window: ShardWindow::new(shard), next: 0, verify };
    until_error(move || records.next_record())
}

/// Whether the first bytes of a shard are the header of a record.
pub(super) fn is_header(first: &[u8]) -> bool {
    let header = first.first_chunk::<{ HEADER_BYTES as usize }>();
    header.is_some_and(|header| length(*header).is_ok())
}

#[derive(Debug)]
struct TfRecords<'a> {
    window: ShardWindow<'a>,
    next: u64,
    verify: bool,
}

impl TfRecords<'_> {
    fn next_record(&mut self) -> Result<Option<Sample>, FormatError> {
        let shard = self.window.shard();
        if self.next == shard.whole().end() {
            return Ok(None);
        }
        let header =
            self.window.array::<{ HEADER_BYTES as usize }>(self.next, "a record header")?;
        let length = length(header).map_err(|problem| shard.error(self.next, problem))?;
        let data = shard.range(self.next + HEADER_BYTES, length, "data of a record")?;
        let footer = shard.range(data.end(), FOOTER_BYTES, "the checksum of a record")?;
        let mut sample = shard.sample(data)?;
        if self.verify {
            let stored = u32::from_le_bytes(self.window.array(footer.offset(), "a checksum")?);
            let crc = shard.crc32c(data)?;
            check("the data", crc, stored)
                .map_err(|problem| shard.error(data.offset(), problem))?;
            sample.crc32c = crc.into();
        }
        self.next = footer.end();
        Ok(Some(sample))
    }
}

fn length(header: [u8; HEADER_BYTES as usize]) -> Result<u64, FormatProblem> {
    let (length, stored) = header.split_at(8);
    let stored = u32::from_le_bytes(stored.try_into().expect("4 bytes"));
    check("the length", crc32c::crc32c(length), stored)?;
    Ok(u64::from_le_bytes(length.try_into().expect("8 bytes")))
}

fn check(of: &'static str, crc: u32, stored: u32) -> Result<(), FormatProblem> {
    let computed = masked(crc);
    let differs = FormatProblem::Checksum { of, stored, computed };
    if computed == stored { Ok(()) } else { Err(differs) }
}

/// Masks a CRC as TFRecord stores it, so that CRCs of data that contains CRCs remain useful.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xA282_EAD8)
}

#[cfg(test)]
mod tests {
    use super::super::ReadAt;
    use super::*;

    fn record(length: u64, data: &[u8]) -> Vec<u8> {
        let length = length.to_le_bytes();
        let crc = |bytes| masked(crc32c::crc32c(bytes)).to_le_bytes();
        [&length[..], &crc(&length), data, &crc(data)].concat()
    }

    fn read(bytes: &dyn ReadAt, verify: bool) -> Result<Vec<Sample>, FormatError> {
        samples(ShardBytes::new(0, bytes), verify).collect()
    }

    #[test]
    fn a_length_that_lies_is_an_error_and_no_allocation() {
        for length in [1 << 63, u64::MAX, 5] {
            let bytes = record(length, b"data");
            let error = read(&bytes, true).unwrap_err();
            assert!(matches!(error.problem, FormatProblem::Truncated { .. }), "{error}");
        }
    }

    #[test]
    fn a_changed_length_is_always_seen_and_changed_data_when_asked() {
        let mut bytes = record(4, b"data");
        bytes[13] ^= 1;
        assert_eq!(read(&bytes, false).unwrap().len(), 1);
        let error = read(&bytes, true).unwrap_err();
        assert!(error.to_string().contains("offset 12: the CRC-32C of the data"), "{error}");
        bytes[0] ^= 1;
        let error = read(&bytes, false).unwrap_err();
        assert!(error.to_string().contains("offset 0: the CRC-32C of the length"), "{error}");
    }

    #[test]
    fn the_checksum_of_the_data_is_that_of_the_sample() {
        let bytes = [record(0, b""), record(4, b"data")].concat();
        let samples = read(&bytes, true).unwrap();
        assert_eq!(samples[1].crc32c.get(), crc32c::crc32c(b"data"));
        assert_eq!((samples[1].offset.get(), samples[1].length.get()), (28, 4));
    }
}

//! CRC-32C of what was read.

use feedrail_initiator::{Entry, PlanError, Region, Ticket};
use pyo3::prelude::*;

use crate::exported::ExportedBytes;

/// Bytes that are copied out at a time: they stay in the cache of a core.
const CHUNK_BYTES: usize = 64 << 10;

/// A range whose bytes are not those of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mismatch {
    /// Number of the range in the plan.
    pub(crate) range: usize,
    pub(crate) computed: u32,
    pub(crate) expected: u32,
}

/// The ranges of a batch whose bytes do not have the checksum that is expected: four bytes for each
/// range, zeros if none is. Ranges that failed have no bytes to check.
///
/// # Errors
/// Another batch reads into some of the bytes.
pub(crate) fn mismatches(
    ticket: &Ticket,
    entries: &[Entry],
    region: &Region,
    expected: &[u8],
) -> Result<Vec<Mismatch>, PlanError> {
    let mut found = Vec::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    for (range, (entry, expected)) in entries.iter().zip(expected.as_chunks().0).enumerate() {
        let expected = u32::from_le_bytes(*expected);
        if expected == 0 || !ticket.outcome(range).is_ok() {
            continue;
        }
        let computed = region_crc32c(region, entry, &mut chunk)?;
        if computed != expected {
            found.push(Mismatch { range, computed, expected });
        }
    }
    Ok(found)
}

fn region_crc32c(region: &Region, entry: &Entry, chunk: &mut [u8]) -> Result<u32, PlanError> {
    // The plan was accepted: its bytes are in the region, and so in memory.
    let (mut at, end) = (entry.dst as usize, entry.dst as usize + entry.length as usize);
    let mut crc = 0;
    while at < end {
        let part = (end - at).min(chunk.len());
        region.copy_out(at, &mut chunk[..part])?;
        crc = ::crc32c::crc32c_append(crc, &chunk[..part]);
        at += part;
    }
    Ok(crc)
}

/// CRC-32C of the bytes that an object exports, with those before it if `crc` is theirs.
#[pyfunction]
#[pyo3(signature = (data, crc = 0))]
pub(crate) fn crc32c(data: &Bound<'_, PyAny>, mut crc: u32) -> PyResult<u32> {
    let bytes = ExportedBytes::of(data)?;
    let mut chunk = vec![0; CHUNK_BYTES.min(bytes.length())];
    let mut at = 0;
    while at < bytes.length() {
        let part = (bytes.length() - at).min(chunk.len());
        bytes.copy(at, &mut chunk[..part]);
        crc = ::crc32c::crc32c_append(crc, &chunk[..part]);
        at += part;
    }
    Ok(crc)
}

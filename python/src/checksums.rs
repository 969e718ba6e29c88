//! CRC-32C of ranges and of exported bytes.

use feedrail_initiator::{Entry, PlanError, Region, Ticket};
use pyo3::prelude::*;

use crate::exported::ExportedBytes;

/// Bytes that are copied at a time, few enough to stay in the cache of a core.
const CHUNK_BYTES: usize = 64 << 10;

/// A range whose bytes do not have the CRC-32C of the index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mismatch {
    /// Index of the range in the plan.
    pub(crate) range: usize,
    pub(crate) computed: u32,
    pub(crate) expected: u32,
}

/// Returns the ranges of a batch that do not have the expected CRC-32C. `expected` has four bytes
/// for each range, zeros if it is not checked. Failed ranges are not checked.
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
    // The plan was accepted, so its bytes are within the region, and thereby in memory.
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

/// Returns the CRC-32C of the bytes that an object exports, continuing from `crc`.
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

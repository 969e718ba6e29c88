//! Python's plans and results: arrays of 24-byte entries and 8-byte results.

use feedrail_initiator::{Entry, Outcome};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::exported::ExportedBytes;

/// Bytes of an entry of `feedrail.PLAN_DTYPE`.
const ENTRY_BYTES: usize = 24;

/// Parses a plan, and checks that the destination of each entry is within a buffer of `out_bytes`.
/// Other checks are made by the initiator.
pub(crate) fn parse(plan: &Bound<'_, PyAny>, out_bytes: usize) -> PyResult<Vec<Entry>> {
    let buffer = ExportedBytes::of(plan)?;
    if buffer.item_bytes() != ENTRY_BYTES {
        let message = "a plan is a C-contiguous array of dtype feedrail.PLAN_DTYPE";
        return Err(PyTypeError::new_err(message));
    }
    let bytes = buffer.to_vec();
    let entries: Vec<_> = bytes.chunks_exact(ENTRY_BYTES).map(entry).collect();
    let beyond = |entry: &Entry| {
        let end = entry.dst.checked_add(u64::from(entry.length));
        end.is_none_or(|end| end > out_bytes as u64)
    };
    if let Some(at) = entries.iter().position(beyond) {
        let Entry { length, dst, .. } = entries[at];
        let message = format!("entry {at}: {length} bytes at {dst} of a buffer of {out_bytes}");
        return Err(PyValueError::new_err(message));
    }
    Ok(entries)
}

/// Parses an entry in the little-endian layout of `feedrail.PLAN_DTYPE`.
fn entry(bytes: &[u8]) -> Entry {
    let half = |at| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let whole = |at| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    Entry { shard: half(0), length: half(4), offset: whole(8), dst: whole(16) }
}

/// Returns a result in the little-endian layout of `feedrail.RESULT_DTYPE`.
pub(crate) fn result_bytes(outcome: Outcome) -> [u8; 8] {
    let [s0, s1] = outcome.status.to_le_bytes();
    let [l0, l1, l2, l3] = outcome.latency_us.to_le_bytes();
    [s0, s1, outcome.path, outcome.attempts, l0, l1, l2, l3]
}

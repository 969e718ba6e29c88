//! Plans as Python hands them over: arrays of 24-byte entries.

use std::ffi::c_void;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::engine::PlanEntry;

/// Bytes of an entry of `feedrail.PLAN_DTYPE`.
pub(crate) const ENTRY_BYTES: usize = 24;

/// Copies a plan in, and checks that every entry is within the shards and within `out_bytes`.
pub(crate) fn parse(
    plan: &Bound<'_, PyAny>,
    shards: usize,
    out_bytes: usize,
) -> PyResult<Vec<PlanEntry>> {
    let buffer = PyUntypedBuffer::get(plan)?;
    if buffer.item_size() != ENTRY_BYTES || !buffer.is_c_contiguous() {
        let message = "a plan is a C-contiguous array of dtype feedrail.PLAN_DTYPE";
        return Err(PyTypeError::new_err(message));
    }
    let entries: Vec<_> = copy(buffer.buf_ptr(), buffer.len_bytes())
        .chunks_exact(ENTRY_BYTES)
        .map(PlanEntry::from_bytes)
        .collect();
    check(&entries, shards, out_bytes)?;
    Ok(entries)
}

fn check(entries: &[PlanEntry], shards: usize, out_bytes: usize) -> PyResult<()> {
    for (index, entry) in entries.iter().enumerate() {
        if entry.shard as usize >= shards {
            let message = format!("entry {index}: shard {} of {shards}", entry.shard);
            return Err(PyValueError::new_err(message));
        }
        let end = entry.dst.checked_add(u64::from(entry.length));
        if end.is_none_or(|end| end > out_bytes as u64) {
            let (length, dst) = (entry.length, entry.dst);
            let message =
                format!("entry {index}: {length} bytes at {dst} of a buffer of {out_bytes}");
            return Err(PyValueError::new_err(message));
        }
    }
    check_disjoint(entries)
}

fn check_disjoint(entries: &[PlanEntry]) -> PyResult<()> {
    let mut order: Vec<_> = (0..entries.len()).filter(|&at| entries[at].length > 0).collect();
    order.sort_unstable_by_key(|&at| entries[at].dst);
    for pair in order.windows(2) {
        let [first, second] = [pair[0], pair[1]];
        if entries[first].dst + u64::from(entries[first].length) > entries[second].dst {
            let message = format!("entries {first} and {second} overlap in the buffer");
            return Err(PyValueError::new_err(message));
        }
    }
    Ok(())
}

#[expect(unsafe_code, reason = "copies an exported buffer")]
fn copy(from: *const c_void, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: the export is contiguous and as long as that; it is held by the caller, and the
    // interpreter is attached.
    unsafe { std::ptr::copy_nonoverlapping(from.cast(), bytes.as_mut_ptr(), length) };
    bytes
}

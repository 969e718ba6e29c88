//! Memory of Python objects that a call copies from or to while the interpreter is detached.
#![expect(unsafe_code, reason = "copies from and to exported memory")]

use std::fmt;
use std::ptr::NonNull;

use pyo3::prelude::*;

use crate::owner::{ExportedMemory, MemoryExporter, MemoryUse};

/// Contiguous memory that another library keeps valid. The interpreter must be attached when it is
/// dropped.
struct ForeignMemory {
    address: NonNull<u8>,
    length: usize,
    _exporter: MemoryExporter,
}

// SAFETY: the address is used only by copies, which may run in any thread; the exporter is only
// held.
unsafe impl Send for ForeignMemory {}
// SAFETY: as above.
unsafe impl Sync for ForeignMemory {}

impl ForeignMemory {
    fn of(object: &Bound<'_, PyAny>, used: MemoryUse) -> PyResult<Self> {
        let ExportedMemory { address, length, exporter } = ExportedMemory::of(object, used)?;
        Ok(Self { address, length, _exporter: exporter })
    }

    /// Returns the address of byte `at`, from which on there are `length` bytes.
    fn part(&self, at: usize, length: usize) -> *mut u8 {
        let end = at.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "bytes outside of the memory");
        self.address.as_ptr().wrapping_add(at)
    }
}

/// Memory that a call copies from; it may be read-only.
pub(crate) struct SourceMemory(ForeignMemory);

impl SourceMemory {
    /// Returns the memory of an array or tensor, which must be C-contiguous host memory of numbers.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        ForeignMemory::of(object, MemoryUse::Source).map(Self)
    }

    pub(crate) fn length(&self) -> usize {
        self.0.length
    }

    /// Copies the bytes from `at` on. Bytes that Python code changes during the copy are those from
    /// before or after the change.
    pub(crate) fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.0.part(at, to.len());
        // SAFETY: the exporter keeps the memory mapped, the range is inside of it, and `to` is
        // memory of Rust code, which no Python object shares.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

/// Memory that a call copies to.
pub(crate) struct TargetMemory(ForeignMemory);

impl TargetMemory {
    /// Returns the memory of an array or tensor, which must be writable, C-contiguous host memory
    /// of numbers.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        ForeignMemory::of(object, MemoryUse::Any).map(Self)
    }

    pub(crate) fn length(&self) -> usize {
        self.0.length
    }

    /// Copies bytes to the memory from `at` on.
    pub(crate) fn copy_in(&self, at: usize, from: &[u8]) {
        let to = self.0.part(at, from.len());
        // SAFETY: as for `SourceMemory::copy_out`, and the memory is writable.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
}

impl fmt::Debug for SourceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceMemory").field("length", &self.length()).finish_non_exhaustive()
    }
}

impl fmt::Debug for TargetMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetMemory").field("length", &self.length()).finish_non_exhaustive()
    }
}

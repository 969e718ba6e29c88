//! Bytes that a Python object exports, for reading.
#![expect(unsafe_code, reason = "copies out of exported memory")]

use std::fmt;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use crate::element;

/// A C-contiguous export. The interpreter is attached during each read, so that no Python code
/// writes to the bytes.
pub(crate) struct ExportedBytes<'py> {
    buffer: PyUntypedBuffer,
    _py: Python<'py>,
}

impl<'py> ExportedBytes<'py> {
    /// Returns the memory that an object exports.
    ///
    /// # Errors
    /// `TypeError` if it exports none, or is not contiguous; `BufferError` if its elements are not
    /// numbers.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let buffer = PyUntypedBuffer::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyTypeError::new_err("the memory is not C-contiguous"));
        }
        element::check(&buffer)?;
        Ok(Self { buffer, _py: object.py() })
    }

    /// Returns the bytes of an element.
    pub(crate) fn item_bytes(&self) -> usize {
        self.buffer.item_size()
    }

    pub(crate) fn length(&self) -> usize {
        self.buffer.len_bytes()
    }

    /// Copies bytes, from `at` on, to `to`; `None` if there are too few.
    pub(crate) fn copy(&self, at: usize, to: &mut [u8]) -> Option<()> {
        let end = at.checked_add(to.len())?;
        if end > self.length() {
            return None;
        }
        let from = self.buffer.buf_ptr().cast::<u8>();
        // SAFETY: the export is contiguous, has this length (checked) and is held; the interpreter
        // is attached as long as this exists. `to` is memory of Rust code, not of Python.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Returns a copy of all bytes.
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length()];
        self.copy(0, &mut bytes);
        bytes
    }
}

impl fmt::Debug for ExportedBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedBytes").field("length", &self.length()).finish_non_exhaustive()
    }
}

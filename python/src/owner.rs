//! Python objects that own memory that devices access.

use std::ffi::c_void;
use std::ptr::NonNull;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;

use crate::dlpack::ImportedTensor;
use crate::element;

/// Owner of memory of another library. Dropped only with the interpreter attached.
#[expect(dead_code, reason = "held, not read")]
pub(crate) enum MemoryExporter {
    /// An export of the buffer protocol.
    Buffer(PyUntypedBuffer),
    /// A tensor of a DLPack capsule.
    Tensor(ImportedTensor),
    /// The object that was passed to `register_ptr`.
    Object(Py<PyAny>),
}

/// Memory of another library, with the owner that keeps it valid.
pub(crate) struct ExportedMemory {
    pub(crate) address: NonNull<u8>,
    pub(crate) length: usize,
    pub(crate) exporter: MemoryExporter,
}

/// Use of exported memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    /// Batches read into it or write from it: it must be writable.
    Any,
    /// Batches write from it: it may be read-only, and devices get no right to write to it.
    Source,
}

impl ExportedMemory {
    /// Returns the memory of an array or tensor, which must be C-contiguous host memory of numbers.
    pub(crate) fn of(object: &Bound<'_, PyAny>, used: MemoryUse) -> PyResult<Self> {
        match PyUntypedBuffer::get(object) {
            Ok(buffer) => Self::of_buffer(buffer, used),
            Err(error) if object.hasattr(intern!(object.py(), "__dlpack__"))? => {
                match ImportedTensor::of(object) {
                    Ok(tensor) => Self::of_tensor(tensor, used),
                    // The object has no buffer protocol at all.
                    Err(dlpack) if error.is_instance_of::<PyTypeError>(object.py()) => Err(dlpack),
                    Err(_) => Err(not_exported(object, &error)?),
                }
            }
            Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
                Err(PyTypeError::new_err(format!(
                    "{} has neither the buffer protocol nor __dlpack__: pass an array or a tensor",
                    object.get_type().name()?
                )))
            }
            Err(error) => Err(not_exported(object, &error)?),
        }
    }

    fn of_buffer(buffer: PyUntypedBuffer, used: MemoryUse) -> PyResult<Self> {
        if used == MemoryUse::Any && buffer.readonly() {
            return Err(PyBufferError::new_err("the memory is read-only: pass a writable array"));
        }
        if !buffer.is_c_contiguous() {
            let message = "the memory is not C-contiguous: pass an array without gaps, in C order";
            return Err(PyBufferError::new_err(message));
        }
        element::check(&buffer)?;
        let (address, length) =
            (address_of(buffer.buf_ptr(), buffer.len_bytes())?, buffer.len_bytes());
        Ok(Self { address, length, exporter: MemoryExporter::Buffer(buffer) })
    }

    fn of_tensor(tensor: ImportedTensor, used: MemoryUse) -> PyResult<Self> {
        let memory = tensor.memory(used)?;
        let address = address_of(memory.address, memory.length)?;
        Ok(Self { address, length: memory.length, exporter: MemoryExporter::Tensor(tensor) })
    }
}

/// Returns the address of memory; some libraries have none for empty arrays.
fn address_of(pointer: *mut c_void, length: usize) -> PyResult<NonNull<u8>> {
    match NonNull::new(pointer.cast()) {
        Some(address) => Ok(address),
        None if length == 0 => Ok(NonNull::dangling()),
        None => Err(PyBufferError::new_err("the exporter gave a null pointer")),
    }
}

/// Returns the exception for an object whose export failed, for example because its element type
/// has no format code.
fn not_exported(object: &Bound<'_, PyAny>, error: &PyErr) -> PyResult<PyErr> {
    let name = object.get_type().name()?;
    let message = format!("{name} does not export its memory: {error}; pass array.view('u1')");
    let refused = PyBufferError::new_err(message);
    refused.set_cause(object.py(), Some(error.clone_ref(object.py())));
    Ok(refused)
}

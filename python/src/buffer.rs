//! Registered memory, as Python objects.
#![expect(unsafe_code, reason = "exports and imports memory by address")]

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use feedrail_initiator::{Grant, Region};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::dlpack;
use crate::errors;
use crate::lease::Lease;
use crate::owner::{ExportedMemory, MemoryExporter, MemoryUse};
use crate::process::HomeProcess;
use crate::released::{self, DrainOnDrop, ReleaseToPython};

/// Host memory that batches read into or write from.
pub(crate) struct BufferMemory {
    region: Arc<Region>,
    /// Offset of the first byte in the region.
    pub(crate) at: usize,
    length: usize,
    home: HomeProcess,
    _lease: Option<Lease>,
}

impl BufferMemory {
    /// Returns all of a region.
    pub(crate) fn whole(region: Region) -> Self {
        let length = region.len();
        let (region, home) = (Arc::new(region), HomeProcess::current());
        Self { region, at: 0, length, home, _lease: None }
    }

    /// Returns the leased part of a region.
    pub(crate) fn leased(region: &Arc<Region>, lease: Lease, length: usize) -> Self {
        let (region, home) = (Arc::clone(region), HomeProcess::current());
        Self { region, at: lease.at, length, home, _lease: Some(lease) }
    }

    /// Returns the region to read into or to write from.
    ///
    /// # Errors
    /// `ForkedHandleError` in a child of the process that registered it.
    pub(crate) fn region(&self, py: Python<'_>) -> PyResult<&Arc<Region>> {
        if self.home.is_current() { Ok(&self.region) } else { Err(errors::forked(py)) }
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns whether batches may only write from it.
    fn is_read_only(&self) -> bool {
        self.region.is_read_only()
    }

    fn address(&self) -> NonNull<u8> {
        NonNull::new(self.region.as_ptr().wrapping_add(self.at)).unwrap_or(NonNull::dangling())
    }
}

/// Registered memory that batches read into or write from.
///
/// It exports its bytes by the buffer protocol and DLPack, without copies. Memory of an array keeps
/// that array until every device has deregistered it.
#[pyclass(frozen, weakref, name = "Buffer", module = "feedrail._core")]
pub(crate) struct BufferObject {
    memory: Arc<BufferMemory>,
    _drain: DrainOnDrop,
}

impl BufferObject {
    pub(crate) fn new(memory: BufferMemory) -> Self {
        Self { memory: Arc::new(memory), _drain: DrainOnDrop }
    }

    /// Returns the memory of the buffer.
    pub(crate) fn memory(&self) -> &Arc<BufferMemory> {
        &self.memory
    }
}

/// Returns a region of memory that an exporter keeps valid.
///
/// # Safety
/// `length` bytes at `address` are readable until the exporter is dropped, and writable as well for
/// [`MemoryUse::Any`].
unsafe fn adopt(
    address: NonNull<u8>,
    length: usize,
    exporter: MemoryExporter,
    used: MemoryUse,
) -> Region {
    let owner = Box::new(ReleaseToPython::new(exporter));
    // SAFETY: the owner has the exporter. Only Python code has pointers to the memory, and is
    // documented not to use the bytes of a batch before it has ended.
    unsafe {
        match used {
            MemoryUse::Any => Region::from_raw(address, length, Grant::Persistent, owner),
            MemoryUse::Source => Region::from_raw_read_only(address, length, owner),
        }
    }
}

fn of_exported(object: &Bound<'_, PyAny>, used: MemoryUse) -> PyResult<BufferObject> {
    released::drain(object.py());
    let ExportedMemory { address, length, exporter } = ExportedMemory::of(object, used)?;
    // SAFETY: the exporter keeps the memory mapped, and writable for `MemoryUse::Any`, until it is
    // dropped, which is after `release` was called.
    let region = unsafe { adopt(address, length, exporter, used) };
    Ok(BufferObject::new(BufferMemory::whole(region)))
}

/// Calls a function of `feedrail._views`; the default of `dtype` is `uint8`.
fn view<'py>(
    buffer: &Bound<'py, BufferObject>,
    function: &Bound<'py, PyString>,
    dtype: Option<&Bound<'py, PyAny>>,
    shape: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = buffer.py();
    let bytes = intern!(py, "u1").as_any();
    let views = py.import(intern!(py, "feedrail._views"))?;
    views.call_method1(function, (buffer, dtype.unwrap_or(bytes), shape))
}

#[pymethods]
impl BufferObject {
    /// Allocates zeroed, page-aligned memory.
    #[staticmethod]
    fn allocate(py: Python<'_>, nbytes: usize) -> PyResult<Self> {
        released::drain(py);
        if isize::try_from(nbytes).is_err() {
            return Err(PyValueError::new_err("more bytes than there are addresses"));
        }
        let region = Region::allocate(nbytes, Grant::Persistent)
            .map_err(|error| errors::system(py, &error))?;
        Ok(Self::new(BufferMemory::whole(region)))
    }

    /// Registers the memory of an array or a tensor.
    #[staticmethod]
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        of_exported(object, MemoryUse::Any)
    }

    /// Registers the memory of an array or a tensor, read-only or not, to write from it.
    #[staticmethod]
    fn of_source(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        of_exported(object, MemoryUse::Source)
    }

    /// Registers `length` bytes at an address, which `owner` keeps valid.
    #[staticmethod]
    fn of_address(
        py: Python<'_>,
        address: usize,
        length: usize,
        owner: Py<PyAny>,
    ) -> PyResult<Self> {
        released::drain(py);
        let Some(address) = NonNull::new(std::ptr::with_exposed_provenance_mut(address)) else {
            return Err(PyValueError::new_err("the address is zero"));
        };
        if address.addr().get().checked_add(length).is_none() {
            return Err(PyValueError::new_err(
                "the memory wraps around the end of the address space",
            ));
        }
        let exporter = MemoryExporter::Object(owner);
        // SAFETY: what the caller of `register_ptr` promises, as its documentation says.
        let region = unsafe { adopt(address, length, exporter, MemoryUse::Any) };
        Ok(Self::new(BufferMemory::whole(region)))
    }

    /// Number of bytes in it.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.length()
    }

    /// Device of the memory: `"cpu"`.
    #[getter]
    fn device(&self) -> &'static str {
        "cpu"
    }

    /// Path of the bytes to the memory: `"host"`, which is registered host memory without a copy.
    #[getter]
    fn path(&self) -> &'static str {
        "host"
    }

    /// Returns a numpy array of the memory, or of its first bytes if `shape` needs fewer.
    #[pyo3(signature = (dtype = None, shape = None))]
    fn as_numpy<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        shape: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        view(slf, intern!(slf.py(), "as_numpy"), dtype, shape)
    }

    /// Returns a torch tensor of the memory, or of its first bytes if `shape` needs fewer.
    #[pyo3(signature = (dtype = None, shape = None))]
    fn as_tensor<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        shape: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        view(slf, intern!(slf.py(), "as_tensor"), dtype, shape)
    }

    /// Address of the first byte.
    #[getter]
    fn address(&self) -> usize {
        self.memory.address().as_ptr().expose_provenance()
    }

    fn __len__(&self) -> usize {
        self.nbytes()
    }

    fn __repr__(&self) -> String {
        format!("<feedrail.Buffer: {} bytes, cpu, path host>", self.memory.length())
    }

    /// Returns type and number of the device, by DLPack.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    /// Returns a DLPack capsule of the bytes as a one-dimensional `uint8` tensor.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let elsewhere = dl_device.is_some_and(|device| device != slf.get().__dlpack_device__());
        if stream.is_some() || elsewhere || copy == Some(true) {
            return Err(PyBufferError::new_err("the memory is on the host, and exported as it is"));
        }
        let memory = slf.get().memory();
        if memory.is_read_only() {
            return Err(PyBufferError::new_err("the memory is read-only: use the buffer protocol"));
        }
        dlpack::capsule(slf.clone().into_any(), memory.address(), memory.length(), max_version)
    }

    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = slf.get().memory();
        let length = ffi::Py_ssize_t::try_from(memory.length())?;
        let (address, readonly) = (memory.address().as_ptr().cast(), memory.is_read_only().into());
        // SAFETY: Python gave the view to fill; the view keeps this object, which keeps the memory.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, length, readonly, flags) };
        if filled != 0 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}

//! Exchange of tensors with other libraries by the DLPack protocol (dmlc/dlpack, versions 0 and 1).
#![expect(unsafe_code, reason = "DLPack is a protocol of C structures")]

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

use crate::owner::{MemoryExporter, MemoryUse};
use crate::released;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

/// `DLDevice`: type and number of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DlDevice {
    device_type: i32,
    device_id: i32,
}

impl DlDevice {
    /// `kDLCPU`, memory of the host.
    const CPU: Self = Self { device_type: 1, device_id: 0 };
    /// `kDLCUDAHost`, which is host memory that CUDA pinned.
    const CUDA_HOST: i32 = 3;

    fn is_host(self) -> bool {
        self.device_type == Self::CPU.device_type || self.device_type == Self::CUDA_HOST
    }
}

/// `DLDataType`: elements have `lanes` values of `bits` each.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DlDataType {
    /// `kDLUInt` of 8 bits.
    const BYTE: Self = Self { code: 1, bits: 8, lanes: 1 };
    /// `kDLOpaqueHandle`: elements are addresses.
    const OPAQUE_HANDLE: u8 = 3;
    /// `kDLFloat4_e2m1fn`, the last code that version 1.1 defines.
    const LAST: u8 = 17;
}

/// `DLTensor`: location, shape and type of the elements.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    dimensions: i32,
    data_type: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor` of version 0.
#[repr(C)]
struct DlManagedTensor {
    tensor: DlTensor,
    manager_context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// `DLManagedTensorVersioned` of versions since 1.0.
#[repr(C)]
struct DlManagedTensorVersioned {
    version: [u32; 2],
    manager_context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

const NAME: &CStr = c"dltensor";
const NAME_USED: &CStr = c"used_dltensor";
const NAME_VERSIONED: &CStr = c"dltensor_versioned";
const NAME_VERSIONED_USED: &CStr = c"used_dltensor_versioned";
/// Version of the protocol that this module implements: major, minor.
const VERSION: [u32; 2] = [1, 0];
/// `DLPACK_FLAG_BITMASK_READ_ONLY`: nobody may write to the tensor.
const READ_ONLY: u64 = 1;
/// Most dimensions of a tensor, more than any library supports.
const MAX_DIMENSIONS: i32 = 64;

/// A tensor that another library exported. Dropping this calls its deleter.
pub(crate) struct ImportedTensor(Managed);

enum Managed {
    Unversioned(NonNull<DlManagedTensor>),
    Versioned(NonNull<DlManagedTensorVersioned>),
}

// SAFETY: the tensor is dropped only with the interpreter attached, which its deleter requires; it
// is not used otherwise.
unsafe impl Send for ImportedTensor {}
// SAFETY: as above; shared references only read the description, which does not change.
unsafe impl Sync for ImportedTensor {}

/// Memory of a tensor.
pub(crate) struct TensorMemory {
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
}

impl ImportedTensor {
    /// Imports the tensor of an object with `__dlpack__`.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        check_device(object)?;
        let capsule = export(object)?;
        let capsule = capsule
            .cast::<PyCapsule>()
            .map_err(|_| PyTypeError::new_err("__dlpack__ returned no capsule"))?;
        Self::take(capsule)
    }

    /// Takes the tensor from a capsule, which is renamed so that it cannot be taken again.
    fn take(capsule: &Bound<'_, PyCapsule>) -> PyResult<Self> {
        if capsule.is_valid_checked(Some(NAME_VERSIONED)) {
            let pointer = capsule.pointer_checked(Some(NAME_VERSIONED))?.cast();
            rename(capsule, NAME_VERSIONED_USED)?;
            return Ok(Self(Managed::Versioned(pointer)));
        }
        if capsule.is_valid_checked(Some(NAME)) {
            let pointer = capsule.pointer_checked(Some(NAME))?.cast();
            rename(capsule, NAME_USED)?;
            return Ok(Self(Managed::Unversioned(pointer)));
        }
        Err(PyBufferError::new_err("the capsule holds no DLPack tensor, or it was used already"))
    }

    /// Returns the memory of the tensor, if it is contiguous host memory that permits this use.
    pub(crate) fn memory(&self, used: MemoryUse) -> PyResult<TensorMemory> {
        if let Managed::Versioned(managed) = self.0 {
            // SAFETY: the tensor belongs to this until its deleter is called, and later versions
            // only append.
            let (version, flags) = unsafe { (managed.as_ref().version, managed.as_ref().flags) };
            if version[0] != VERSION[0] {
                let message =
                    format!("DLPack version {}: this module speaks version 1", version[0]);
                return Err(PyBufferError::new_err(message));
            }
            if used == MemoryUse::Any && flags & READ_ONLY != 0 {
                return Err(PyBufferError::new_err("the tensor is read-only: pass a writable one"));
            }
        }
        self.tensor().memory()
    }

    fn tensor(&self) -> &DlTensor {
        match &self.0 {
            // SAFETY: as above.
            Managed::Unversioned(managed) => unsafe { &managed.as_ref().tensor },
            // SAFETY: as above; callers checked the version.
            Managed::Versioned(managed) => unsafe { &managed.as_ref().tensor },
        }
    }
}

impl Drop for ImportedTensor {
    fn drop(&mut self) {
        match self.0 {
            Managed::Unversioned(managed) => {
                // SAFETY: the deleter is called once, as the protocol asks.
                unsafe { managed.as_ref().deleter.inspect(|delete| delete(managed.as_ptr())) };
            }
            Managed::Versioned(managed) => {
                // SAFETY: as above.
                unsafe { managed.as_ref().deleter.inspect(|delete| delete(managed.as_ptr())) };
            }
        }
    }
}

impl DlTensor {
    fn memory(&self) -> PyResult<TensorMemory> {
        if !self.device.is_host() {
            return Err(not_host(self.device.device_type));
        }
        let shape = self.shape()?;
        if !self.is_contiguous(shape) {
            let message = "the tensor is not C-contiguous: pass tensor.contiguous()";
            return Err(PyBufferError::new_err(message));
        }
        let length = self.data_type.bytes_of(shape)?;
        let address = self.start(length)?;
        Ok(TensorMemory { address, length })
    }

    /// Returns the address of the first of `length` bytes.
    fn start(&self, length: usize) -> PyResult<*mut c_void> {
        let offset = usize::try_from(self.byte_offset).ok();
        let end =
            offset.and_then(|offset| self.data.addr().checked_add(offset)?.checked_add(length));
        match offset.zip(end) {
            Some((offset, _)) => Ok(self.data.wrapping_byte_add(offset)),
            None => {
                Err(PyBufferError::new_err("the memory wraps around the end of the address space"))
            }
        }
    }

    fn shape(&self) -> PyResult<&[i64]> {
        if !(0..=MAX_DIMENSIONS).contains(&self.dimensions) {
            let message = format!("a tensor of {} dimensions", self.dimensions);
            return Err(PyBufferError::new_err(message));
        }
        if self.dimensions == 0 {
            return Ok(&[]);
        }
        if self.shape.is_null() {
            return Err(PyBufferError::new_err("a tensor without a shape"));
        }
        // SAFETY: by the protocol these are `dimensions` sizes.
        Ok(unsafe { std::slice::from_raw_parts(self.shape, self.dimensions as usize) })
    }

    /// Returns whether the elements are contiguous in C order, which is implied without strides.
    fn is_contiguous(&self, shape: &[i64]) -> bool {
        if self.strides.is_null() || shape.is_empty() || shape.contains(&0) {
            return true;
        }
        // SAFETY: by the protocol these are `dimensions` strides.
        let strides = unsafe { std::slice::from_raw_parts(self.strides, shape.len()) };
        let mut expected = 1_i64;
        shape.iter().zip(strides).rev().all(|(&size, &stride)| {
            let fits = size == 1 || stride == expected;
            expected = expected.saturating_mul(size);
            fits
        })
    }
}

impl DlDataType {
    /// Returns the bytes of a dense tensor of this shape; elements of less than a byte are packed.
    fn bytes_of(self, shape: &[i64]) -> PyResult<usize> {
        if self.code == Self::OPAQUE_HANDLE || self.code > Self::LAST {
            let message = format!("elements of DLPack type {} are not plain numbers", self.code);
            return Err(PyBufferError::new_err(message));
        }
        let bits = usize::from(self.bits).checked_mul(usize::from(self.lanes));
        let count = shape
            .iter()
            .try_fold(1_usize, |product, &size| product.checked_mul(usize::try_from(size).ok()?));
        let bits = bits.zip(count).and_then(|(bits, count)| bits.checked_mul(count));
        let whole = bits.filter(|bits| bits % 8 == 0).map(|bits| bits / 8);
        whole.ok_or_else(|| PyBufferError::new_err("the tensor has no size in whole bytes"))
    }
}

/// Rejects memory of a device, before the exporter synchronises with it.
fn check_device(object: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = object.py();
    let device = object.call_method0(intern!(py, "__dlpack_device__"))?;
    let (device_type, device_id): (i32, i32) = device.extract()?;
    let device = DlDevice { device_type, device_id };
    if device.is_host() { Ok(()) } else { Err(not_host(device_type)) }
}

fn not_host(device_type: i32) -> PyErr {
    PyBufferError::new_err(format!(
        "the memory is on a device of DLPack type {device_type}: this build reads into memory of the host only"
    ))
}

/// Requests a capsule of version 1, or of version 0 from libraries that do not know the argument.
fn export<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item(intern!(py, "max_version"), (VERSION[0], VERSION[1]))?;
    match object.call_method(intern!(py, "__dlpack__"), (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method0(intern!(py, "__dlpack__"))
        }
        answer => answer,
    }
}

fn rename(capsule: &Bound<'_, PyCapsule>, name: &'static CStr) -> PyResult<()> {
    // SAFETY: a capsule, and a name that lives as long as the program.
    let failed = unsafe { pyo3::ffi::PyCapsule_SetName(capsule.as_ptr(), name.as_ptr()) };
    if failed == 0 { Ok(()) } else { Err(PyErr::fetch(capsule.py())) }
}

/// Owner of an exported tensor's memory, with the tensor's shape.
struct Exported {
    keeps: Py<PyAny>,
    shape: [i64; 1],
}

/// Returns a capsule of `length` writable bytes at `address`, which `keeps` keeps valid.
pub(crate) fn capsule(
    keeps: Bound<'_, PyAny>,
    address: NonNull<u8>,
    length: usize,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'_, PyAny>> {
    let py = keeps.py();
    let shape = [i64::try_from(length).unwrap_or(i64::MAX)];
    let exported = Box::into_raw(Box::new(Exported { keeps: keeps.unbind(), shape }));
    // SAFETY: the line above created it.
    let shape = unsafe { &raw mut (*exported).shape }.cast();
    let tensor = DlTensor {
        data: address.as_ptr().cast(),
        device: DlDevice::CPU,
        dimensions: 1,
        data_type: DlDataType::BYTE,
        shape,
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let versioned = max_version.is_some_and(|(major, _)| major >= VERSION[0]);
    let (pointer, name): (*mut c_void, _) = if versioned {
        let managed = DlManagedTensorVersioned {
            version: VERSION,
            manager_context: exported.cast(),
            deleter: Some(delete_versioned),
            flags: 0,
            tensor,
        };
        (Box::into_raw(Box::new(managed)).cast(), NAME_VERSIONED)
    } else {
        let managed =
            DlManagedTensor { tensor, manager_context: exported.cast(), deleter: Some(delete) };
        (Box::into_raw(Box::new(managed)).cast(), NAME)
    };
    // SAFETY: the name exists as long as the program, and the destructor knows both names.
    unsafe {
        let capsule = pyo3::ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy_capsule));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Destructor of a capsule: deletes a tensor that no library has taken from it.
unsafe extern "C" fn destroy_capsule(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: Python calls it with a capsule that `capsule` made. Under either name its pointer is
    // that of a tensor of ours; under another name the tensor belongs to the library that renamed
    // it.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) != 0 {
            delete(pyo3::ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        } else if pyo3::ffi::PyCapsule_IsValid(capsule, NAME_VERSIONED.as_ptr()) != 0 {
            delete_versioned(
                pyo3::ffi::PyCapsule_GetPointer(capsule, NAME_VERSIONED.as_ptr()).cast(),
            );
        }
    }
    // Python calls a destructor with the interpreter attached.
    let _ = Python::try_attach(released::drain);
}

unsafe extern "C" fn delete(managed: *mut DlManagedTensor) {
    // SAFETY: a deleter is called once, with its own tensor.
    unsafe { forget(Box::from_raw(managed).manager_context) };
}

unsafe extern "C" fn delete_versioned(managed: *mut DlManagedTensorVersioned) {
    // SAFETY: as above.
    unsafe { forget(Box::from_raw(managed).manager_context) };
}

/// Releases the owner of a tensor's memory. Libraries may call deleters on any thread, and after
/// the interpreter has ended. torch does so with the interpreter detached, even within a call of
/// ours that attached it, in which `Python::attach` would wrongly rely on that.
///
/// # Safety
/// `context` is that of a tensor that [`capsule`] made, and this is called once for it.
unsafe fn forget(context: *mut c_void) {
    // SAFETY: `capsule` made it of a box, and the caller calls once.
    let exported = unsafe { Box::from_raw(context.cast::<Exported>()) };
    released::push(MemoryExporter::Object(exported.keeps));
    released::drain_soon();
}

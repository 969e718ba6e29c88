//! Conversion of errors of checkpoint stores to exceptions of `feedrail`.

use feedrail_checkpoint::{Error, Failure, ReplicaError, VolumeFormatError};
use feedrail_checkpoint_store::StoreError;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors;

/// Value of `errno.ENOSPC` of Linux.
const ENOSPC: i32 = 28;

/// Returns the exception for an error of a store.
pub(crate) fn exception(py: Python<'_>, error: &StoreError) -> PyErr {
    match error {
        StoreError::Host(error) => errors::exception(py, error),
        StoreError::Name(_)
        | StoreError::Volume(Error::RenameKind)
        | StoreError::WhichNamespace(_)
        | StoreError::Replicas { error: ReplicaError::Quorum { .. }, .. } => {
            PyValueError::new_err(error.to_string())
        }
        StoreError::Device { error: Error::Device(Failure::Device), cause } => {
            let exception = errors::exception(py, cause);
            let said = exception.value(py).setattr("args", (error.to_string(),));
            said.map_or_else(|failed| failed, |()| exception)
        }
        error => new_exception(py, error).map_or_else(|failed| failed, PyErr::from_value),
    }
}

fn new_exception<'py>(py: Python<'py>, error: &StoreError) -> PyResult<Bound<'py, PyAny>> {
    let class = class(error);
    let details = PyDict::new(py);
    let attributes = PyDict::new(py);
    match (error, error.volume()) {
        (StoreError::Leased { host, rest }, _) => {
            details.set_item("retryable", true)?;
            attributes.set_item("host", host.to_string())?;
            attributes.set_item("rest", rest.as_secs_f64())?;
        }
        (StoreError::Damaged { checkpoint, entry, offset, length }, _) => {
            details.set_item("offset", *offset)?;
            details.set_item("length", *length)?;
            attributes.set_item("checkpoint", checkpoint)?;
            attributes.set_item("entry", entry)?;
        }
        (_, Some(Error::CapacityExceeded { needed_bytes, free_bytes })) => {
            details.set_item("errno", ENOSPC)?;
            attributes.set_item("needed_bytes", *needed_bytes)?;
            attributes.set_item("free_bytes", *free_bytes)?;
        }
        (StoreError::NotMade(_) | StoreError::LostWrites(_) | StoreError::SaveLost, _) => {
            details.set_item("retryable", true)?;
        }
        _ => {}
    }
    let module = py.import("feedrail._checkpoint_errors")?;
    let exception = module.getattr(class)?.call((error.to_string(),), Some(&details))?;
    for (name, value) in attributes.iter() {
        exception.setattr(name.cast::<pyo3::types::PyString>()?, value)?;
    }
    Ok(exception)
}

/// Returns the name of the class in `feedrail._checkpoint_errors` for an error.
fn class(error: &StoreError) -> &'static str {
    match error {
        StoreError::Volume(error) | StoreError::Device { error, .. } => volume_class(error),
        StoreError::Resolve { .. } => "TargetLost",
        StoreError::BlockBytes(_) => "NotAVolume",
        StoreError::WriteProtected | StoreError::ReadOnly => "AccessDenied",
        StoreError::SaveInProgress => "SaveInProgress",
        StoreError::Leased { .. } => "Leased",
        StoreError::Damaged { .. } => "Damaged",
        StoreError::NotMade(_)
        | StoreError::LostWrites(_)
        | StoreError::SaveLost
        | StoreError::NotWritten
        | StoreError::ReservationEnded => "SaveFailed",
        StoreError::Unknown(_) => "CommitUnknown",
        StoreError::Replicas { .. } | StoreError::NoQuorum { .. } => "NoQuorum",
        _ => "CheckpointError",
    }
}

fn volume_class(error: &Error) -> &'static str {
    match error {
        Error::Format(VolumeFormatError::Limit(_)) => "CheckpointError",
        Error::Format(_) | Error::TooSmall { .. } => "NotAVolume",
        Error::Device(Failure::CapacityExceeded) | Error::CapacityExceeded { .. } => {
            "CapacityExceeded"
        }
        Error::Device(Failure::WriteProtected) => "AccessDenied",
        Error::Unknown(_) | Error::Reopen => "CommitUnknown",
        Error::Occupied(_) => "VolumeOccupied",
        Error::Fenced
        | Error::NoLease
        | Error::Device(Failure::Miscompare | Failure::LeaseEnded) => "LeaseLost",
        Error::Leased { .. } => "Leased",
        Error::Exists(_) => "CheckpointExists",
        Error::Missing(_) => "NotFound",
        Error::Incomplete(_) => "SaveFailed",
        Error::RenameKind => "CheckpointError",
        Error::Range => "RangeError",
        Error::Damaged { .. } => "Damaged",
        Error::Device(Failure::Device) => "CheckpointError",
    }
}

//! Conversion of errors of the initiator to exceptions of `feedrail`.

use std::io;

use feedrail_dataset::formats::FormatError;
use feedrail_initiator::{Entry, Error, ErrorKind, Namespace, PlanError, RefusedField};
use nvme_proto::Status;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::replicas::NotOpened;

/// Returns the exception for an error of the initiator.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let made = new_exception(py, class(error.kind()), error);
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// Returns the exception for a manifest that cannot be opened.
pub(crate) fn not_opened(py: Python<'_>, error: NotOpened) -> PyErr {
    let (class, message, retryable) = match error {
        NotOpened::Changed(message) => ("DatasetChanged", message, false),
        NotOpened::Lost(message) => ("TargetLost", message, true),
        NotOpened::Refused(error) => return exception(py, &error),
    };
    let make = || {
        let details = PyDict::new(py);
        details.set_item(intern!(py, "retryable"), retryable)?;
        py.import("feedrail._errors")?.getattr(class)?.call((message,), Some(&details))
    };
    make().map_or_else(|failed| failed, PyErr::from_value)
}

/// Returns the exception for a handle of another process: `ForkedHandleError`.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    exception(py, &ErrorKind::Forked.into())
}

/// Returns the exception for a flush that has not ended within `seconds`: `ReadTimeout`.
pub(crate) fn flush_timeout(py: Python<'_>, seconds: f64) -> PyErr {
    let message = format!("the flush has not ended within {seconds} s: bytes may not be durable");
    with_details(py, "ReadTimeout", message, |details| {
        details.set_item(intern!(py, "retryable"), true)
    })
}

/// Returns the exception for connections that were lost between writes and their flush:
/// `TargetLost`.
pub(crate) fn lost_before_flush(py: Python<'_>, targets: Vec<String>) -> PyErr {
    let message = "a connection was lost after the writes that this flush covers: a target that \
                   restarted may have lost their bytes; write them again, and flush";
    with_details(py, "TargetLost", message.to_owned(), |details| {
        details.set_item(intern!(py, "tried"), PyTuple::new(py, targets)?)
    })
}

/// Returns the exception for a failed authentication: `AuthenticationError`.
pub(crate) fn not_authenticated(py: Python<'_>, message: String) -> PyErr {
    of_class(py, "AuthenticationError", message)
}

/// Returns the exception for a pool without enough free bytes: `PoolFull`.
pub(crate) fn pool_full(py: Python<'_>, message: String) -> PyErr {
    of_class(py, "PoolFull", message)
}

/// Returns the exception for an error of a system call.
pub(crate) fn system(py: Python<'_>, error: &io::Error) -> PyErr {
    with_details(py, "FeedrailError", error.to_string(), |details| {
        details.set_item(intern!(py, "errno"), error.raw_os_error())
    })
}

/// Returns the exception for bytes of a namespace with a wrong CRC-32C: `ChecksumError`.
pub(crate) fn checksum(
    py: Python<'_>,
    namespace: &Namespace,
    computed: u32,
    expected: u32,
) -> PyErr {
    let target = namespace.target().to_string();
    let message = format!(
        "the bytes from {target} have CRC-32C {computed:#010x}, not {expected:#010x}: compare the \
         shard with its origin, and index it again if it was changed on purpose"
    );
    with_details(py, "ChecksumError", message, |details| {
        details.set_item(intern!(py, "tried"), PyTuple::new(py, [target])?)
    })
}

/// Returns the exception for a shard that violates its format: `FormatError`.
pub(crate) fn format(py: Python<'_>, error: &FormatError) -> PyErr {
    with_details(py, "FormatError", error.problem.to_string(), |details| {
        details.set_item(intern!(py, "shard"), error.shard)?;
        details.set_item(intern!(py, "offset"), error.offset)
    })
}

fn with_details(
    py: Python<'_>,
    class: &str,
    message: String,
    fill: impl FnOnce(&Bound<'_, PyDict>) -> PyResult<()>,
) -> PyErr {
    let make = || {
        let details = PyDict::new(py);
        fill(&details)?;
        py.import(intern!(py, "feedrail._errors"))?.getattr(class)?.call((message,), Some(&details))
    };
    make().map_or_else(|failed| failed, PyErr::from_value)
}

fn new_exception<'py>(py: Python<'py>, class: &str, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let details = PyDict::new(py);
    if let ErrorKind::Io(io) = error.kind() {
        details.set_item(intern!(py, "errno"), io.raw_os_error())?;
    }
    if error.status().is_some_and(|status| status.is(Status::CAPACITY_EXCEEDED)) {
        details.set_item(intern!(py, "errno"), ENOSPC)?;
    }
    let tried = error.target().map(ToString::to_string);
    details.set_item(intern!(py, "tried"), PyTuple::new(py, tried)?)?;
    let status = error.status().map(|status| status.without_flags().to_bits());
    details.set_item(intern!(py, "status"), status)?;
    details.set_item(intern!(py, "retryable"), error.is_retryable())?;
    let hint = if class == READ_ONLY { HOW_TO_WRITE } else { "" };
    let class = py.import(intern!(py, "feedrail._errors"))?.getattr(class)?;
    class.call((format!("{error}{hint}"),), Some(&details))
}

/// Value of `errno.ENOSPC` of Linux.
const ENOSPC: i32 = 28;
/// Class for namespaces that cannot be written.
const READ_ONLY: &str = "ReadOnly";
/// End of the message of a [`READ_ONLY`].
const HOW_TO_WRITE: &str = "; to write it, set `read_only = false` in the target's configuration, \
                            start its quick form with `--writable`, or end its protection with \
                            `feedrail target protect --undo`";

/// Returns the name of the class in `feedrail._errors` for a kind of error.
fn class(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::OutOfRange { .. } => "RangeError",
        ErrorKind::Status(status)
            if status.is(Status::NAMESPACE_IS_WRITE_PROTECTED)
                || status.is(Status::ATTEMPTED_WRITE_TO_READ_ONLY_RANGE) =>
        {
            READ_ONLY
        }
        ErrorKind::Changed(_) => "DatasetChanged",
        ErrorKind::ConnectRefused { field: RefusedField::Subsystem, .. }
        | ErrorKind::NoNamespace(_) => "NotFound",
        ErrorKind::ConnectRefused { field: RefusedField::Host, .. } => "AccessDenied",
        ErrorKind::ConnectRefused { status, .. } if status.do_not_retry() => "FeedrailError",
        ErrorKind::Authentication { .. } => "AuthenticationError",
        ErrorKind::Lost { cause, .. }
            if matches!(cause.kind(), ErrorKind::Authentication { .. }) =>
        {
            "AuthenticationError"
        }
        ErrorKind::Lost { .. }
        | ErrorKind::ConnectionLost(_)
        | ErrorKind::ConnectRefused { .. }
        | ErrorKind::Rejected(_)
        | ErrorKind::Unreachable(_) => "TargetLost",
        ErrorKind::TimedOut { .. } => "ReadTimeout",
        ErrorKind::Forked => "ForkedHandleError",
        _ => "FeedrailError",
    }
}

/// Returns the exception for a rejected plan, whose destinations were shifted by `at` bytes.
pub(crate) fn refused(py: Python<'_>, error: PlanError, entries: &[Entry], at: usize) -> PyErr {
    match error {
        PlanError::Host(error) => exception(py, &error),
        PlanError::BeyondShard { entry, .. } => {
            let exception = of_class(py, "RangeError", error.to_string());
            match locate(py, &exception, &entries[entry]) {
                Ok(()) => exception,
                Err(failed) => failed,
            }
        }
        PlanError::InFlight { start, end } => {
            let [start, end] = [start, end].map(|byte| byte.saturating_sub(at as u64));
            let message = format!(
                "another batch uses bytes {start} to {end} of the buffer: wait for it first"
            );
            of_class(py, "BufferInUse", message)
        }
        PlanError::ReadOnlyRegion => {
            PyBufferError::new_err("the buffer is read-only, and cannot be read into")
        }
        error => PyValueError::new_err(error.to_string()),
    }
}

/// Returns an exception of a class of `feedrail._errors`.
fn of_class(py: Python<'_>, class: &str, message: String) -> PyErr {
    let make = || py.import("feedrail._errors")?.getattr(class)?.call1((message,));
    make().map_or_else(|failed| failed, PyErr::from_value)
}

/// Sets the attributes `shard`, `offset` and `length` of an exception for a range.
pub(crate) fn locate(py: Python<'_>, exception: &PyErr, entry: &Entry) -> PyResult<()> {
    let exception = exception.value(py);
    exception.setattr(intern!(py, "shard"), entry.shard)?;
    exception.setattr(intern!(py, "offset"), entry.offset)?;
    exception.setattr(intern!(py, "length"), entry.length)
}

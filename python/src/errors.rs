//! Errors of the initiator as exceptions of `feedrail`.

use feedrail_initiator::{Error, ErrorKind};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::engine::PlanEntry;

/// The exception for an error of the initiator.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    let made = new_exception(py, class(error.kind()), error);
    made.map_or_else(|failed| failed, PyErr::from_value)
}

/// The exception for a handle that another process made.
pub(crate) fn forked(py: Python<'_>) -> PyErr {
    exception(py, &ErrorKind::Forked.into())
}

/// The exception of a pool without room.
pub(crate) fn pool_full(py: Python<'_>, message: String) -> PyErr {
    let make = || py.import("feedrail._errors")?.getattr("PoolFull")?.call1((message,));
    make().map_or_else(|failed: PyErr| failed, PyErr::from_value)
}

fn new_exception<'py>(py: Python<'py>, class: &str, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let details = PyDict::new(py);
    if let ErrorKind::Io(io) = error.kind() {
        details.set_item(intern!(py, "errno"), io.raw_os_error())?;
    }
    let tried = error.target().map(ToString::to_string);
    details.set_item(intern!(py, "tried"), PyTuple::new(py, tried)?)?;
    let status = error.status().map(|status| status.without_flags().to_bits());
    details.set_item(intern!(py, "status"), status)?;
    details.set_item(intern!(py, "retryable"), is_retryable(error.kind()))?;
    let class = py.import(intern!(py, "feedrail._errors"))?.getattr(class)?;
    class.call((error.to_string(),), Some(&details))
}

/// The name of its class in `feedrail._errors`.
fn class(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::OutOfRange { .. } => "RangeError",
        ErrorKind::Changed(_) => "DatasetChanged",
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

/// Whether the same call may succeed later, with nothing else changed.
fn is_retryable(kind: &ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Lost { .. }
            | ErrorKind::ConnectionLost(_)
            | ErrorKind::Unreachable(_)
            | ErrorKind::TimedOut { .. }
    )
}

/// Says in an exception which range it is about.
pub(crate) fn locate(py: Python<'_>, exception: &PyErr, entry: &PlanEntry) -> PyResult<()> {
    let exception = exception.value(py);
    exception.setattr(intern!(py, "shard"), entry.shard)?;
    exception.setattr(intern!(py, "offset"), entry.offset)?;
    exception.setattr(intern!(py, "length"), entry.length)
}

//! Durations that Python passes.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A number of seconds, zero or more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds: f64 = object.extract()?;
        let duration = Duration::try_from_secs_f64(seconds).map_err(|_| {
            PyValueError::new_err(format!("{seconds} is no time in seconds, which is 0 or more"))
        })?;
        Ok(Self(duration))
    }
}

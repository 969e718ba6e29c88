//! Values that belong to one process.

use std::mem;

use pyo3::prelude::*;

use crate::errors;
use crate::process::HomeProcess;

/// A value that a forked child neither uses nor drops: threads of the parent may have held its
/// locks, and its connections are the parent's. It is dropped with the interpreter detached.
pub(crate) struct HomeOnly<T: Send> {
    home: HomeProcess,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T: Send> HomeOnly<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { home: HomeProcess::current(), value: Some(value) }
    }

    /// Returns the value, or `ForkedHandleError` in a child of the process that made it.
    pub(crate) fn get(&self, py: Python<'_>) -> PyResult<&T> {
        let value = self.value.as_ref().filter(|_| self.home.is_current());
        value.ok_or_else(|| errors::forked(py))
    }
}

impl<T: Send> Drop for HomeOnly<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        if !self.home.is_current() {
            mem::forget(value);
            return;
        }
        // While the interpreter ends, nothing can attach, and the closure is dropped uncalled.
        let _ = Python::try_attach(|py| py.detach(move || drop(value)));
    }
}

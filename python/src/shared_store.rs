//! A checkpoint store that several Python objects use.

use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedrail_checkpoint_store::{ReplicatedStore, StoreError};
use pyo3::exceptions::{PyRuntimeWarning, PyValueError};
use pyo3::prelude::*;

use crate::home_only::HomeOnly;
use crate::store_errors;

/// A store that its Python object and its saves share.
pub(crate) struct SharedStore {
    /// `None` once it was closed.
    store: HomeOnly<Mutex<Option<ReplicatedStore>>>,
    /// Each save that has not ended has a clone.
    active: Arc<()>,
}

impl SharedStore {
    pub(crate) fn new(store: ReplicatedStore) -> Self {
        Self { store: HomeOnly::new(Mutex::new(Some(store))), active: Arc::new(()) }
    }

    /// Calls a function with the store, detached. The store is locked only while detached, so that
    /// a thread that waits for it never holds up the interpreter.
    ///
    /// # Errors
    /// `ForkedHandleError`, `ValueError` if the store is closed, the exception of the call's error.
    pub(crate) fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut ReplicatedStore) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let store = self.store.get(py)?;
        let result = py.detach(|| lock(store).as_mut().map(call));
        match result {
            Some(result) => result.map_err(|error| store_errors::exception(py, &error)),
            None => Err(PyValueError::new_err("the checkpoint store is closed")),
        }
    }

    /// Returns a token that a save keeps until it has ended.
    pub(crate) fn activity(&self) -> Arc<()> {
        Arc::clone(&self.active)
    }

    /// Gives the leases back. It is no error if the store is closed.
    ///
    /// # Errors
    /// `SaveInProgress` while a save has not ended; the exception of an operation that failed.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.store.get(py)?;
        let closed = py.detach(|| {
            let mut store = lock(store);
            if Arc::strong_count(&self.active) > 1 {
                return Err(StoreError::SaveInProgress);
            }
            store.take().map_or(Ok(()), ReplicatedStore::close)
        });
        match closed {
            Err(error @ StoreError::SaveInProgress) => Err(store_errors::exception(py, &error)),
            // What was saved is durable; only the next writer has to wait.
            Err(error) => {
                let message = CString::new(format!("the lease ends by its time: {error}"))?;
                PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &message, 1)
            }
            Ok(()) => Ok(()),
        }
    }
}

fn lock(store: &Mutex<Option<ReplicatedStore>>) -> MutexGuard<'_, Option<ReplicatedStore>> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

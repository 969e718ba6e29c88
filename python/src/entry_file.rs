//! A file in a checkpoint: an entry whose bytes are appended, before its commit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedrail_checkpoint_store::{ReplicaFile, ReplicatedStore, StoreError};
use pyo3::prelude::*;

use crate::home_only::HomeOnly;
use crate::released;
use crate::shared_store::SharedStore;
use crate::source_pieces::SourcePieces;

/// A file in the making. A store can have many.
#[pyclass(frozen, weakref, name = "EntryFile", module = "feedrail._core")]
pub(crate) struct EntryFileObject {
    shared: Arc<SharedStore>,
    /// `None` once it was committed or aborted.
    file: HomeOnly<Mutex<Option<OpenFile>>>,
}

struct OpenFile {
    file: ReplicaFile,
    /// Keeps the store from being closed.
    _activity: Arc<()>,
}

#[pymethods]
impl EntryFileObject {
    /// Appends the bytes of a buffer, which may be reused when this returns. Handlers of signals
    /// run each 100 ms; what they raise leaves a part of the bytes appended.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        released::drain(py);
        SourcePieces::of(data)?.take_all(py, |pieces| {
            self.with(py, |store, open| {
                let file = &mut open.as_mut().ok_or(StoreError::SaveLost)?.file;
                while let Some((_, bytes)) = pieces.next(file.room()) {
                    file.append(store, bytes)?;
                }
                Ok(())
            })
        })
    }

    /// Makes the file durable and visible. It has then ended, whatever the result is.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        released::drain(py);
        self.with(py, |store, open| {
            let OpenFile { file, _activity } = open.take().ok_or(StoreError::SaveLost)?;
            file.commit(store)
        })
    }

    /// Ends the file without a commit. It is no error if it has ended.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let file = self.file.get(py)?;
        py.detach(|| drop(lock(file).take()));
        Ok(())
    }

    /// Bytes that were appended; 0 once it has ended.
    #[getter]
    fn length(&self, py: Python<'_>) -> PyResult<u64> {
        let file = self.file.get(py)?;
        Ok(py.detach(|| lock(file).as_ref().map_or(0, |open| open.file.length())))
    }
}

impl EntryFileObject {
    pub(crate) fn new(shared: &Arc<SharedStore>, file: ReplicaFile) -> Self {
        let open = OpenFile { file, _activity: shared.activity() };
        Self { shared: Arc::clone(shared), file: HomeOnly::new(Mutex::new(Some(open))) }
    }

    /// Calls a function with the store and the file, detached.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut ReplicatedStore, &mut Option<OpenFile>) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let file = self.file.get(py)?;
        self.shared.with(py, |store| call(store, &mut lock(file)))
    }
}

fn lock(file: &Mutex<Option<OpenFile>>) -> MutexGuard<'_, Option<OpenFile>> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

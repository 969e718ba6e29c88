//! A save of a checkpoint, before its commit.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use feedrail_checkpoint_store::{
    ReplicaSaves, ReplicatedStore, SaveEntry, StoreError, WrittenEntry,
};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;

use crate::home_only::HomeOnly;
use crate::released;
use crate::shared_store::SharedStore;
use crate::source_pieces::SourcePieces;

/// A checkpoint in the making: `feedrail.CheckpointSave` wraps it.
#[pyclass(frozen, weakref, name = "CheckpointSave", module = "feedrail._core")]
pub(crate) struct CheckpointSaveObject {
    shared: Arc<SharedStore>,
    state: HomeOnly<Mutex<SaveState>>,
}

struct SaveState {
    /// `None` once it was committed or aborted.
    active: Option<ActiveSave>,
    /// Entries that other processes write, by name.
    reserved: Vec<(String, SaveEntry)>,
}

struct ActiveSave {
    saves: ReplicaSaves,
    /// Keeps the store from being closed.
    _activity: Arc<()>,
}

#[pymethods]
impl CheckpointSaveObject {
    /// Adds an entry with the bytes of a buffer, which may be reused when this returns. Handlers of
    /// signals run each 100 ms; what they raise leaves the entry incomplete.
    fn write(&self, py: Python<'_>, name: &str, data: &Bound<'_, PyAny>) -> PyResult<()> {
        released::drain(py);
        let pieces = SourcePieces::of(data)?;
        let (entry, unit_bytes) = self.with(py, |store, state| {
            let saves = saves(state)?;
            let entry = saves.add(store, name, pieces.length() as u64)?;
            Ok((entry, saves.unit_bytes() as usize))
        })?;
        pieces.take_all(py, |pieces| {
            self.with(py, |store, state| {
                let saves = saves(state)?;
                while let Some((offset, bytes)) = pieces.next(unit_bytes) {
                    saves.write_at(store, entry, offset as u64, bytes)?;
                }
                Ok(())
            })
        })
    }

    /// Adds an entry that another process writes, and returns its reservation as JSON.
    fn reserve(&self, py: Python<'_>, name: &str, length: u64) -> PyResult<String> {
        let reservations = self.with(py, |store, state| {
            let saves = saves(state)?;
            let entry = saves.add(store, name, length)?;
            let reservations = saves.reserve(store, entry)?;
            state.reserved.push((name.to_owned(), entry));
            Ok(reservations)
        })?;
        serde_json::to_string(&reservations)
            .map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Takes the result of `RankWriter.finish` for a reserved entry.
    fn accept(&self, py: Python<'_>, name: &str, written: &str) -> PyResult<()> {
        let written: WrittenEntry = serde_json::from_str(written)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        let entry = self.take_reserved(py, name)?;
        self.with(py, |store, state| saves(state)?.accept(store, entry, &written))
    }

    /// Gives up an entry that another process was to write, and whose writer was closed.
    fn withdraw(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let entry = self.take_reserved(py, name)?;
        self.with(py, |_, state| {
            saves(state)?.withdraw(entry);
            Ok(())
        })
    }

    /// Makes the checkpoint durable and visible. The save has then ended, whatever the result is.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        released::drain(py);
        self.with(py, |store, state| {
            let ActiveSave { saves, _activity } =
                state.active.take().ok_or(StoreError::SaveLost)?;
            saves.commit(store)
        })
    }

    /// Ends the save without a commit. It is no error if it has ended.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let state = self.state.get(py)?;
        py.detach(|| drop(lock(state).active.take()));
        Ok(())
    }

    /// Whether it was committed or aborted.
    #[getter]
    fn has_ended(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state.get(py)?;
        Ok(py.detach(|| lock(state).active.is_none()))
    }
}

impl CheckpointSaveObject {
    pub(crate) fn new(shared: &Arc<SharedStore>, saves: ReplicaSaves) -> Self {
        let active = Some(ActiveSave { saves, _activity: shared.activity() });
        let state = SaveState { active, reserved: Vec::new() };
        Self { shared: Arc::clone(shared), state: HomeOnly::new(Mutex::new(state)) }
    }

    /// Calls a function with the store and the save, detached.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut ReplicatedStore, &mut SaveState) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let state = self.state.get(py)?;
        self.shared.with(py, |store| call(store, &mut lock(state)))
    }

    fn take_reserved(&self, py: Python<'_>, name: &str) -> PyResult<SaveEntry> {
        let state = self.state.get(py)?;
        let found = py.detach(|| {
            let reserved = &mut lock(state).reserved;
            let place = reserved.iter().position(|(one, _)| one == name)?;
            Some(reserved.swap_remove(place).1)
        });
        found.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }
}

fn lock(state: &Mutex<SaveState>) -> MutexGuard<'_, SaveState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn saves(state: &mut SaveState) -> Result<&mut ReplicaSaves, StoreError> {
    state.active.as_mut().map(|active| &mut active.saves).ok_or(StoreError::SaveLost)
}

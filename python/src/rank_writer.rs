//! Writing of an entry of a save of another process.

use std::sync::{Mutex, PoisonError};

use feedrail_checkpoint_store::{EntryReservation, RankWriter, StoreError};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::home_only::HomeOnly;
use crate::released;
use crate::source_pieces::SourcePieces;
use crate::store_errors;
use crate::volume_places::VolumeOptions;

/// Writer of an entry that a save of another process has reserved.
#[pyclass(frozen, weakref, name = "RankWriter", module = "feedrail._core")]
pub(crate) struct RankWriterObject {
    /// `None` once it has ended.
    writer: HomeOnly<Mutex<Option<RankWriter>>>,
}

#[pymethods]
impl RankWriterObject {
    /// Connects to the replicas of the save's store, by the result of `CheckpointSave.reserve`.
    #[new]
    fn new(
        py: Python<'_>,
        urls: Vec<String>,
        reservation: &str,
        options: VolumeOptions,
    ) -> PyResult<Self> {
        released::drain(py);
        let reservations: Vec<Option<EntryReservation>> = serde_json::from_str(reservation)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        if reservations.len() != urls.len() {
            return Err(PyValueError::new_err("the save has another number of replicas"));
        }
        let places = options.connect(py, &urls)?;
        let (quorum, options) = (options.quorum(urls.len()), options.store_options());
        let opened = py.detach(|| RankWriter::open(places, reservations, quorum, options));
        let writer = opened.map_err(|error| store_errors::exception(py, &error))?;
        Ok(Self { writer: HomeOnly::new(Mutex::new(Some(writer))) })
    }

    /// Writes the next bytes of the entry, which may be changed when this returns.
    fn append(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<()> {
        released::drain(py);
        SourcePieces::of(data)?.take_all(py, |pieces| {
            self.with(py, |writer| {
                let writer = writer.as_mut().ok_or(StoreError::ReservationEnded)?;
                while let Some((_, bytes)) = pieces.next(writer.room()) {
                    writer.append(bytes)?;
                }
                Ok(())
            })
        })
    }

    /// Waits until all bytes are durable, and returns the result for `CheckpointSave.accept`.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let written =
            self.with(py, |writer| writer.take().ok_or(StoreError::ReservationEnded)?.finish())?;
        serde_json::to_string(&written).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Ends the writer: no write is in flight afterwards. It is no error if it has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |writer| {
            drop(writer.take());
            Ok(())
        })
    }
}

impl RankWriterObject {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Option<RankWriter>) -> Result<T, StoreError> + Send,
    ) -> PyResult<T> {
        let writer = self.writer.get(py)?;
        let result = py.detach(|| call(&mut writer.lock().unwrap_or_else(PoisonError::into_inner)));
        result.map_err(|error| store_errors::exception(py, &error))
    }
}

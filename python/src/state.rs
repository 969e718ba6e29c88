//! Sequences of batches and the states of their loaders, for `feedrail.torch.Loader`.

use feedrail_dataset::Blake3Hash;
use feedrail_dataset::state::{Batches, Place, Sequence, State};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::{Mutex, PoisonError};

use crate::order::{parse_shuffle, positive};

/// Parameters that determine the batches of a training run.
#[pyclass(frozen, name = "Sequence", module = "feedrail._core")]
pub(crate) struct SequenceObject(Sequence);

#[pymethods]
impl SequenceObject {
    /// `dataset` is a text that identifies the data; `order` is as for `Order`.
    #[new]
    fn new(
        dataset: &str,
        samples: u64,
        order: &str,
        seed: u64,
        global_batch: u64,
        drop_last: bool,
    ) -> PyResult<Self> {
        Ok(Self(Sequence {
            dataset: Blake3Hash::of(dataset.as_bytes()),
            samples,
            shuffle: parse_shuffle(order)?,
            seed,
            global_batch: positive("a batch", global_batch)?,
            drop_last,
        }))
    }

    /// Number of samples that an epoch reads.
    #[getter]
    fn epoch_samples(&self) -> u64 {
        self.0.epoch_samples()
    }

    /// Returns the state of a loader, as JSON.
    fn state(&self, epoch: u64, consumed: u64) -> String {
        self.0.state(Place { epoch, consumed }).to_json()
    }

    /// Returns epoch and consumed samples of a state in JSON; `ValueError` if it is of another
    /// sequence.
    fn resume(&self, state: &str) -> PyResult<(u64, u64)> {
        let place = State::parse(state.as_bytes()).and_then(|state| self.0.resume(&state));
        let place = place.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok((place.epoch, place.consumed))
    }

    /// Returns every `step`-th of the batches after `consumed` samples, starting with index `skip`.
    fn batches(&self, consumed: u64, skip: usize, step: usize) -> PyResult<BatchesObject> {
        if step == 0 {
            return Err(PyValueError::new_err("a step is 1 or more"));
        }
        let rest = self.0.batches(Place { epoch: 0, consumed });
        Ok(BatchesObject { rest: Mutex::new((rest, skip)), step })
    }
}

/// Iterator over batches, each as the positions of its first sample and after its last.
#[pyclass(frozen, name = "Batches", module = "feedrail._core")]
pub(crate) struct BatchesObject {
    /// Remaining batches, and how many of them to skip before the next.
    rest: Mutex<(Batches, usize)>,
    step: usize,
}

#[pymethods]
impl BatchesObject {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self) -> Option<(u64, u64)> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let (batches, skip) = &mut *rest;
        let batch = batches.nth(*skip)?;
        *skip = self.step - 1;
        Some((batch.start, batch.end))
    }
}

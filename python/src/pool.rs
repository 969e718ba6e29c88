//! Pools: memory that is registered once and leased to batches.

use std::sync::Arc;
use std::time::Duration;

use feedrail_initiator::{Grant, Region};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::block_on::wait_interruptibly;
use crate::buffer::{BufferMemory, BufferObject};
use crate::errors;
use crate::lease::Arena;
use crate::process::HomeProcess;
use crate::released;
use crate::seconds::Seconds;

/// Registered host memory, leased in multiples of 4,096 bytes.
#[pyclass(frozen, name = "Pool", module = "feedrail._core")]
pub(crate) struct PoolObject {
    home: HomeProcess,
    region: Arc<Region>,
    arena: Arc<Arena>,
}

#[pymethods]
impl PoolObject {
    #[new]
    fn new(py: Python<'_>, nbytes: usize) -> PyResult<Self> {
        released::drain(py);
        let Some(nbytes) = Arena::length_for(nbytes).filter(|&n| isize::try_from(n).is_ok()) else {
            return Err(PyValueError::new_err("a pool of more bytes than there are addresses"));
        };
        let region = Region::allocate(nbytes, Grant::Persistent)
            .map_err(|error| errors::system(py, &error))?;
        let (home, arena) = (HomeProcess::current(), Arena::new(nbytes));
        Ok(Self { home, region: Arc::new(region), arena })
    }

    /// Number of bytes, leased or not.
    #[getter]
    fn nbytes(&self) -> usize {
        self.region.len()
    }

    /// Number of free bytes, in parts of any length.
    #[getter]
    fn free(&self, py: Python<'_>) -> PyResult<usize> {
        released::drain(py);
        self.check(py)?;
        Ok(self.arena.free_bytes())
    }

    /// Leases `nbytes` bytes, which are returned when the buffer and all arrays over it were
    /// dropped.
    ///
    /// Raises `PoolFull` if no contiguous part of that length becomes free within `timeout`
    /// seconds, or immediately if `timeout` is `None`.
    #[pyo3(signature = (nbytes, *, timeout = None))]
    fn take(
        &self,
        py: Python<'_>,
        nbytes: usize,
        timeout: Option<Seconds>,
    ) -> PyResult<BufferObject> {
        released::drain(py);
        self.check(py)?;
        let timeout = timeout.map_or(Duration::ZERO, |Seconds(timeout)| timeout);
        if nbytes > self.region.len() {
            let message = format!("{nbytes} bytes of a pool of {}", self.region.len());
            return Err(errors::pool_full(py, message));
        }
        let take = |step| self.arena.take(nbytes, step);
        let lease = wait_interruptibly(py, Some(timeout), take, || Ok(()))?;
        let Some(lease) = lease else {
            let (free, all) = (self.arena.free_bytes(), self.region.len());
            let message = format!("no {nbytes} bytes in one piece: {free} of {all} are free");
            return Err(errors::pool_full(py, message));
        };
        Ok(BufferObject::new(BufferMemory::leased(&self.region, lease, nbytes)))
    }

    fn __repr__(&self) -> String {
        format!("<feedrail.Pool: {} bytes, cpu>", self.region.len())
    }
}

impl PoolObject {
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.home.is_current() { Ok(()) } else { Err(errors::forked(py)) }
    }
}

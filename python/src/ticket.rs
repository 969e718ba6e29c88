//! Batches under way, as Python objects.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rustix::event::{EventfdFlags, eventfd};

use crate::block_on::{ThreadWaker, wait_interruptibly};
use crate::buffer::BufferMemory;
use crate::engine::Batch;
use crate::errors;
use crate::process::HomeProcess;
use crate::released::{self, DrainOnDrop};
use crate::seconds::Seconds;

/// A batch under way. Dropping it cancels what is not over.
#[pyclass(frozen, weakref, name = "Ticket", module = "feedrail._core")]
pub(crate) struct TicketObject {
    home: HomeProcess,
    batch: Batch,
    signal: Arc<BatchSignal>,
    waker: Waker,
    _memory: Arc<BufferMemory>,
    _drain: DrainOnDrop,
}

/// Tells those who wait for a batch that it is over.
#[derive(Debug, Default)]
struct BatchSignal {
    thread: Arc<ThreadWaker>,
    descriptor: Mutex<Option<OwnedFd>>,
}

impl BatchSignal {
    fn descriptor(&self) -> MutexGuard<'_, Option<OwnedFd>> {
        self.descriptor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for BatchSignal {
    fn wake(self: Arc<Self>) {
        self.thread.wake_by_ref();
        if let Some(descriptor) = &*self.descriptor() {
            // It fails if the count is at its end: then the descriptor is readable already.
            let _ = rustix::io::write(descriptor, &1_u64.to_ne_bytes());
        }
    }
}

impl TicketObject {
    pub(crate) fn new(batch: Batch, memory: Arc<BufferMemory>) -> Self {
        let signal = Arc::new(BatchSignal::default());
        let waker = Arc::clone(&signal).into();
        Self {
            home: HomeProcess::current(),
            batch,
            signal,
            waker,
            _memory: memory,
            _drain: DrainOnDrop,
        }
    }

    /// Waits until it is over, or `timeout` is; says whether it is over.
    pub(crate) fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<bool> {
        let over = wait_interruptibly(py, timeout, |step| {
            let over = || self.batch.poll(&self.waker).then_some(());
            over().or_else(|| {
                self.signal.thread.wait(step);
                over()
            })
        })?;
        Ok(over.is_some())
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.home.is_current() { Ok(()) } else { Err(errors::forked(py)) }
    }
}

#[pymethods]
impl TicketObject {
    /// Whether every range has its result.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        released::drain(py);
        self.check(py)?;
        Ok(py.detach(|| self.batch.poll(&self.waker)))
    }

    /// Waits for `timeout` seconds at most; returns whether every range has its result.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<bool> {
        released::drain(py);
        self.check(py)?;
        self.wait_for(py, timeout.map(|Seconds(timeout)| timeout))
    }

    /// Gives up the ranges without a result, and returns their number.
    fn cancel(&self, py: Python<'_>) -> PyResult<usize> {
        self.check(py)?;
        Ok(py.detach(|| self.batch.cancel()))
    }

    /// A descriptor that is readable once every range has its result. It belongs to the ticket.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.check(py)?;
        let mut descriptor = self.signal.descriptor();
        if descriptor.is_none() {
            let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
            *descriptor = Some(eventfd(0, flags).map_err(|error| {
                PyOSError::new_err((error.raw_os_error(), "no eventfd for the ticket"))
            })?);
        }
        let number = descriptor.as_ref().map_or(-1, AsRawFd::as_raw_fd);
        drop(descriptor);
        if py.detach(|| self.batch.poll(&self.waker)) {
            self.waker.wake_by_ref();
        }
        Ok(number)
    }

    /// A result of `RESULT_DTYPE` for each range, as bytes; none before all are there.
    fn results<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let results = self.batch.results();
        let bytes: Vec<u8> = results.into_iter().flat_map(|result| result.to_bytes()).collect();
        PyBytes::new(py, &bytes)
    }

    /// Number and exception of the ranges that failed, of `at_most` of them.
    fn failures(&self, py: Python<'_>, at_most: usize) -> PyResult<Vec<(usize, PyErr)>> {
        let failures = self.batch.failures(at_most).into_iter().map(|(index, error)| {
            let exception = errors::exception(py, &error);
            errors::locate(py, &exception, &self.batch.entries()[index])?;
            Ok((index, exception))
        });
        failures.collect()
    }
}

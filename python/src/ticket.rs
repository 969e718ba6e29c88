//! Batches under way, as Python objects.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use feedrail_initiator::{Entry, Outcome, Ticket};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::block_on::wait_interruptibly;
use crate::buffer::BufferMemory;
use crate::entry;
use crate::errors;
use crate::lingering;
use crate::process::HomeProcess;
use crate::released::{self, DrainOnDrop};
use crate::seconds::Seconds;
use crate::stalls::StallCounters;

/// A batch under way. Dropping it cancels what is not over.
#[pyclass(frozen, weakref, name = "Ticket", module = "feedrail._core")]
pub(crate) struct TicketObject {
    home: HomeProcess,
    /// There until it is dropped.
    ticket: Option<Ticket>,
    entries: Vec<Entry>,
    memory: Arc<BufferMemory>,
    stalls: Arc<StallCounters>,
    _drain: DrainOnDrop,
}

impl TicketObject {
    pub(crate) fn new(
        ticket: Ticket,
        entries: Vec<Entry>,
        memory: Arc<BufferMemory>,
        stalls: &Arc<StallCounters>,
    ) -> Self {
        stalls.submitted();
        let (home, ticket, stalls) = (HomeProcess::current(), Some(ticket), Arc::clone(stalls));
        Self { home, ticket, entries, memory, stalls, _drain: DrainOnDrop }
    }

    /// Waits until it is over, or `timeout` is; says whether it is over.
    pub(crate) fn wait_for(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<bool> {
        let ticket = self.ticket(py)?;
        let wait = |step| ticket.wait(usize::MAX, Some(step)).is_done().then_some(());
        let over = self.stalls.during(|| wait_interruptibly(py, timeout, wait))?;
        Ok(over.is_some())
    }

    /// The batch, for a call from Python.
    ///
    /// # Errors
    /// `ForkedHandleError` in a child of the process that submitted it.
    fn ticket(&self, py: Python<'_>) -> PyResult<&Ticket> {
        let ticket = self.ticket.as_ref().filter(|_| self.home.is_current());
        ticket.ok_or_else(|| errors::forked(py))
    }
}

impl Drop for TicketObject {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take_if(|ticket| !ticket.is_done()) {
            // There is no interpreter any more when it fails: the process ends.
            let _ = Python::try_attach(|py| lingering::cancel(py, ticket, &self.memory));
        }
    }
}

#[pymethods]
impl TicketObject {
    /// Whether every range has its result.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        released::drain(py);
        let ticket = self.ticket(py)?;
        Ok(ticket.is_done() || py.detach(|| ticket.wait(0, None).is_done()))
    }

    /// Waits for `timeout` seconds at most; returns whether every range has its result.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Seconds>) -> PyResult<bool> {
        released::drain(py);
        self.wait_for(py, timeout.map(|Seconds(timeout)| timeout))
    }

    /// Gives up the ranges without a result, and returns the number of those that ended at once.
    fn cancel(&self, py: Python<'_>) -> PyResult<usize> {
        let ticket = self.ticket(py)?;
        Ok(py.detach(|| ticket.cancel()))
    }

    /// A descriptor that is readable once every range has its result. It belongs to the ticket.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let ticket = self.ticket(py)?;
        let descriptor = py.detach(|| ticket.fd()).map_err(PyOSError::new_err)?;
        Ok(descriptor.as_raw_fd())
    }

    /// A result of `RESULT_DTYPE` for each range, as bytes.
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes: Vec<u8> = self.ticket(py)?.outcomes().flat_map(entry::result_bytes).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Number and exception of the ranges that failed, of `at_most` of them.
    fn failures(&self, py: Python<'_>, at_most: usize) -> PyResult<Vec<(usize, PyErr)>> {
        let ticket = self.ticket(py)?;
        let failed = |&(_, outcome): &(usize, Outcome)| !outcome.is_ok() && !outcome.is_pending();
        let failed = ticket.outcomes().enumerate().filter(failed).take(at_most);
        let errors = failed.filter_map(|(index, _)| Some((index, ticket.error(index)?)));
        let located = errors.map(|(index, error)| {
            let exception = errors::exception(py, &error);
            errors::locate(py, &exception, &self.entries[index])?;
            Ok((index, exception))
        });
        located.collect()
    }
}

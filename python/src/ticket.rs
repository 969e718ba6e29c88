//! Batches in flight, as Python objects.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use feedrail_initiator::{Entry, Host, MonotonicTime, Outcome, Ticket};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::block_on::wait_interruptibly;
use crate::buffer::BufferMemory;
use crate::checksums::{Mismatch, mismatches};
use crate::entry;
use crate::errors;
use crate::lingering;
use crate::open_shards::OpenShards;
use crate::process::HomeProcess;
use crate::released::{self, DrainOnDrop};
use crate::seconds::Seconds;
use crate::stalls::StallCounters;
use crate::unflushed::SubmittedWrite;

/// Stack level of the caller of `Source.read_many` or `Ticket.wait` in a warning of this module.
const FRAMES_OF_WAIT: i32 = 2;

/// A batch in flight. Dropping it cancels the ranges that have not ended.
#[pyclass(frozen, weakref, name = "Ticket", module = "feedrail._core")]
pub(crate) struct TicketObject {
    home: HomeProcess,
    /// Set until it is dropped.
    ticket: Option<Ticket>,
    entries: Vec<Entry>,
    memory: Arc<BufferMemory>,
    stalls: Arc<StallCounters>,
    began: MonotonicTime,
    /// Whether the duration of the finished batch was counted.
    is_counted: AtomicBool,
    shards: Arc<OpenShards>,
    /// Set if the batch writes and is not durable by itself.
    write: Option<SubmittedWrite>,
    _drain: DrainOnDrop,
}

impl TicketObject {
    pub(crate) fn new(
        ticket: Ticket,
        entries: Vec<Entry>,
        memory: Arc<BufferMemory>,
        stalls: &Arc<StallCounters>,
        shards: &Arc<OpenShards>,
        write: Option<SubmittedWrite>,
    ) -> Self {
        stalls.submitted();
        let (home, ticket, stalls) = (HomeProcess::current(), Some(ticket), Arc::clone(stalls));
        let (began, is_counted) = (Host::now(), AtomicBool::new(false));
        let shards = Arc::clone(shards);
        Self {
            home,
            ticket,
            entries,
            memory,
            stalls,
            began,
            is_counted,
            shards,
            write,
            _drain: DrainOnDrop,
        }
    }

    /// Waits until the batch has ended, or `timeout` has passed; returns whether it has ended.
    /// Calls `progress` every 100 ms and at the end with the bytes of the ranges that have ended,
    /// and those of all ranges.
    pub(crate) fn wait_for(
        &self,
        py: Python<'_>,
        timeout: Option<Duration>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let ticket = self.ticket(py)?;
        let wait = |step| ticket.wait(usize::MAX, Some(step)).is_done().then_some(());
        let tell = || match progress {
            Some(progress) => progress.call1(self.ended_bytes(ticket)).map(drop),
            None => Ok(()),
        };
        let over = self.stalls.during(|| wait_interruptibly(py, timeout, wait, tell))?;
        if over.is_some() {
            self.count();
            tell()?;
            self.shards.tell(py, FRAMES_OF_WAIT)?;
        }
        Ok(over.is_some())
    }

    /// Returns the bytes of the ranges that have ended, and those of all ranges.
    fn ended_bytes(&self, ticket: &Ticket) -> (u64, u64) {
        let ranges = self.entries.iter().zip(ticket.outcomes());
        ranges.fold((0, 0), |(ended, all), (entry, outcome)| {
            let length = u64::from(entry.length);
            (ended + if outcome.is_pending() { 0 } else { length }, all + length)
        })
    }

    /// Counts the duration of the batch, when its end is first observed. Writes are acknowledged
    /// from then on, and covered by the next flush.
    fn count(&self) {
        if !self.is_counted.swap(true, Ordering::Relaxed) {
            self.stalls.ended(Host::now().saturating_duration_since(self.began));
            self.write.iter().for_each(SubmittedWrite::acknowledge);
        }
    }

    /// Returns the ticket, for a call from Python.
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
            // Fails only after the interpreter has ended, when the process exits.
            let _ = Python::try_attach(|py| lingering::cancel(py, ticket, &self.memory));
        }
    }
}

#[pymethods]
impl TicketObject {
    /// Returns whether every range has its result.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        released::drain(py);
        let ticket = self.ticket(py)?;
        let is_done = ticket.is_done() || py.detach(|| ticket.wait(0, None).is_done());
        if is_done {
            self.count();
        }
        Ok(is_done)
    }

    /// Waits for at most `timeout` seconds; returns whether every range has its result.
    #[pyo3(signature = (timeout = None, progress = None))]
    fn wait(
        &self,
        py: Python<'_>,
        timeout: Option<Seconds>,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        released::drain(py);
        self.wait_for(py, timeout.map(|Seconds(timeout)| timeout), progress)
    }

    /// Returns index and exception of each successful range whose bytes have a wrong CRC-32C.
    /// `crc32c` has a little-endian `uint32` for each range, 0 if it is not checked.
    fn mismatches(&self, py: Python<'_>, crc32c: &[u8]) -> PyResult<Vec<(usize, PyErr)>> {
        let ticket = self.ticket(py)?;
        let region = self.memory.region(py)?;
        let found = py.detach(|| mismatches(ticket, &self.entries, region, crc32c));
        let found =
            found.map_err(|error| errors::refused(py, error, &self.entries, self.memory.at))?;
        let located = found.into_iter().map(|Mismatch { range, computed, expected }| {
            let exception = errors::checksum(py, ticket.namespace(range), computed, expected);
            errors::locate(py, &exception, &self.entries[range])?;
            Ok((range, exception))
        });
        located.collect()
    }

    /// Cancels the ranges without a result, and returns the number of those that ended immediately.
    fn cancel(&self, py: Python<'_>) -> PyResult<usize> {
        let ticket = self.ticket(py)?;
        Ok(py.detach(|| ticket.cancel()))
    }

    /// Returns a descriptor that is readable once every range has its result. It belongs to the
    /// ticket.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let ticket = self.ticket(py)?;
        let descriptor = py.detach(|| ticket.fd()).map_err(|error| errors::system(py, &error))?;
        Ok(descriptor.as_raw_fd())
    }

    /// Returns a result of `RESULT_DTYPE` for each range, as bytes.
    fn results<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes: Vec<u8> = self.ticket(py)?.outcomes().flat_map(entry::result_bytes).collect();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Returns index and exception of at most `at_most` ranges that failed.
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

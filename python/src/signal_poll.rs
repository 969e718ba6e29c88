//! Handlers of signals during calls that run detached.

use std::ops::ControlFlow;
use std::time::Duration;

use feedrail_initiator::{Host, MonotonicTime};
use pyo3::prelude::*;

/// Pause between runs of the handlers.
const EVERY: Duration = Duration::from_millis(100);

/// Runs the handlers of signals each 100 ms, as often as a detached call polls it.
pub(crate) struct SignalPoll {
    last: MonotonicTime,
    raised: Option<PyErr>,
}

impl SignalPoll {
    pub(crate) fn new() -> Self {
        Self { last: Host::now(), raised: None }
    }

    /// Returns `Break` once a handler has raised an exception.
    pub(crate) fn poll(&mut self) -> ControlFlow<()> {
        let now = Host::now();
        if now.saturating_duration_since(self.last) < EVERY {
            return ControlFlow::Continue(());
        }
        self.last = now;
        match Python::attach(|py| py.check_signals()) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.raised = Some(error);
                ControlFlow::Break(())
            }
        }
    }

    /// Returns whether 100 ms have passed since the last run, and starts the next 100 ms.
    pub(crate) fn is_due(&mut self) -> bool {
        let now = Host::now();
        let is_due = now.saturating_duration_since(self.last) >= EVERY;
        if is_due {
            self.last = now;
        }
        is_due
    }

    /// Returns the exception of a handler, if one raised any.
    pub(crate) fn finish(self) -> PyResult<()> {
        self.raised.map_or(Ok(()), Err)
    }
}

//! Waiting with the interpreter detached, while handlers of signals still run.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use feedrail_initiator::Host;
use pyo3::prelude::*;

use crate::released;

/// Pause between runs of the handlers of signals while a thread waits.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Waker of a waiting thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadWaker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl ThreadWaker {
    /// Waits until it was woken since the last call, or `at_most` has passed.
    pub(crate) fn wait(&self, at_most: Duration) {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(woken, at_most, |woken| !*woken);
        let (mut woken, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *woken = false;
    }
}

impl Wake for ThreadWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

/// Calls `wait`, which waits for at most the given time, until it returns a result or `timeout` has
/// passed; then returns `None`. After each call of `wait` without a result, calls `between` with
/// the interpreter attached.
///
/// # Errors
/// The exception that a handler of a signal raised, within 100 ms, or that of `between`.
pub(crate) fn wait_interruptibly<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    mut wait: impl FnMut(Duration) -> Option<T> + Send,
    mut between: impl FnMut() -> PyResult<()>,
) -> PyResult<Option<T>> {
    let start = Host::now();
    loop {
        let passed = Host::now().saturating_duration_since(start);
        let left = timeout.map(|timeout| timeout.saturating_sub(passed));
        let step = left.unwrap_or(SIGNALS_EVERY).min(SIGNALS_EVERY);
        if let Some(result) = py.detach(|| wait(step)) {
            return Ok(Some(result));
        }
        py.check_signals()?;
        between()?;
        released::drain(py);
        if left.is_some_and(|left| left <= step) {
            return Ok(None);
        }
    }
}

/// Waits for a future.
///
/// # Errors
/// The exception that a handler of a signal raised, after which the future is dropped.
pub(crate) fn block_on<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
) -> PyResult<T> {
    let ready = block_on_for(py, None, future)?;
    Ok(ready.expect("without a time-out it waits for the result"))
}

/// Waits for a future like [`block_on`]; `None` if `timeout` has passed, after which it is dropped.
pub(crate) fn block_on_for<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    future: impl Future<Output = T> + Send,
) -> PyResult<Option<T>> {
    let waker = Arc::new(ThreadWaker::default());
    let task = Arc::clone(&waker).into();
    let mut future = pin!(future);
    let wait = |step| {
        let mut poll = || match future.as_mut().poll(&mut Context::from_waker(&task)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        };
        poll().or_else(|| {
            waker.wait(step);
            poll()
        })
    };
    wait_interruptibly(py, timeout, wait, || Ok(()))
}

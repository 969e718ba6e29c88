//! Waiting with the interpreter's lock given up, while signals still arrive.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use feedrail_initiator::Host;
use pyo3::prelude::*;

use crate::released;

/// How often a thread that waits runs the handlers of signals that arrived.
const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// Wakes a thread that waits.
#[derive(Debug, Default)]
pub(crate) struct ThreadWaker {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl ThreadWaker {
    /// Waits until it was woken since the last call, or the time has passed.
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

/// Calls `wait`, which waits for at most as long as it is told, until it returns something or
/// `timeout` has passed; `None` then. Calls `between` with the interpreter attached each time that
/// `wait` returned nothing.
///
/// # Errors
/// What a signal's handler raised, within 100 ms, or what `between` returned.
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
/// What a signal's handler raised; the future is dropped then.
pub(crate) fn block_on<T: Send>(
    py: Python<'_>,
    future: impl Future<Output = T> + Send,
) -> PyResult<T> {
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
    let ready = wait_interruptibly(py, None, wait, || Ok(()))?;
    Ok(ready.expect("without a time-out it waits for the result"))
}

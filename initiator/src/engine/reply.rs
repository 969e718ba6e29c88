//! A single result from an engine to a caller, for operations off the data path.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::driver::foreign_code;
use crate::driver::process::Process;
use crate::engine::results::Outbox;
use crate::types::error::{Error, ErrorKind};

/// The engine's end, which is resolved once. If it is dropped instead, the result is
/// [`ErrorKind::Closed`].
#[derive(Debug)]
pub(crate) struct Promise<T>(Option<Arc<Cell<T>>>);

/// The caller's end, a future of the result.
#[derive(Debug)]
pub(crate) struct Reply<T> {
    cell: Arc<Cell<T>>,
    /// Process of the engine; in a forked child the result is an error.
    process: Process,
}

#[derive(Debug)]
struct Cell<T>(Mutex<ReplyState<T>>);

#[derive(Debug)]
enum ReplyState<T> {
    Waiting(Option<Waker>),
    Done(Result<T, Error>),
    Taken,
}

/// Returns both ends of a new promise of an engine in this process.
pub(crate) fn promise<T>(process: Process) -> (Promise<T>, Reply<T>) {
    let cell = Arc::new(Cell(Mutex::new(ReplyState::Waiting(None))));
    let promise = Promise(Some(Arc::clone(&cell)));
    (promise, Reply { cell, process })
}

impl<T> Promise<T> {
    /// Sets the result, and adds the waker of the waiting task to `outbox`.
    pub(crate) fn keep(mut self, result: Result<T, Error>, outbox: &mut Outbox) {
        let waker = self.0.take().and_then(|cell| cell.finish(result));
        if let Some(waker) = waker {
            outbox.wake(waker);
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let waker = self.0.take().and_then(|cell| cell.finish(Err(ErrorKind::Closed.into())));
        if let Some(waker) = waker {
            foreign_code::call("a waker", || waker.wake());
        }
    }
}

impl<T> Cell<T> {
    fn lock(&self) -> MutexGuard<'_, ReplyState<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, result: Result<T, Error>) -> Option<Waker> {
        match mem::replace(&mut *self.lock(), ReplyState::Done(result)) {
            ReplyState::Waiting(waker) => waker,
            ReplyState::Done(_) | ReplyState::Taken => None,
        }
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.process.check()?;
        let mut state = self.cell.lock();
        match mem::replace(&mut *state, ReplyState::Taken) {
            ReplyState::Done(result) => Poll::Ready(result),
            ReplyState::Waiting(_) => {
                *state = ReplyState::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            ReplyState::Taken => Poll::Ready(Err(ErrorKind::Closed.into())),
        }
    }
}

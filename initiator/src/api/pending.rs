//! Results that may not be available yet.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::driver::host_state::Inner;
use crate::driver::process::Forked;
use crate::driver::system_now;
use crate::engine::arena::RingKey;
use crate::engine::completion::RangeCompletion;

/// An operation in progress: a future for any runtime, or a result to wait for with
/// [`Pending::wait`].
///
/// Wakers are called by the thread that has the result, without a lock of this crate. If a waker
/// panics, the panic is caught and logged, and the other wakers are called.
///
/// The operation continues without a waiter. If this is dropped, writes and commands continue, and
/// reads send no further command. Memory that was moved in is freed when the target can no longer
/// access it.
#[must_use = "the result of the operation is lost"]
pub struct Pending<T> {
    host: Arc<Inner>,
    future: Pin<Box<dyn Future<Output = T> + Send>>,
}

impl<T> Pending<T> {
    pub(crate) fn new(host: &Arc<Inner>, future: impl Future<Output = T> + Send + 'static) -> Self {
        Self { host: Arc::clone(host), future: Box::pin(future) }
    }

    /// Waits for the result, and drives the host until then.
    ///
    /// # Panics
    /// The host uses a simulated device, which only the simulator can drive.
    pub fn wait(mut self) -> T {
        let waits = self.host.shared.is_forked() || self.host.can_wait();
        assert!(waits, "a simulated host is driven by its simulator");
        let host = Arc::clone(&self.host);
        host.shared.block_on(pin!(self.future.as_mut()))
    }
}

impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if let Poll::Ready(output) = self.future.as_mut().poll(context) {
            return Poll::Ready(output);
        }
        if !self.host.shared.threaded {
            return Poll::Pending;
        }
        // Takes a result that is ready by now without waking another thread.
        self.host.shared.turn(system_now());
        let polled = self.future.as_mut().poll(context);
        if polled.is_pending() {
            self.host.shared.kick();
        }
        polled
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

/// A ring of a single future, which is closed when this is dropped.
#[derive(Debug)]
pub(crate) struct OwnRing {
    pub(crate) host: Arc<Inner>,
    pub(crate) key: RingKey,
}

impl Drop for OwnRing {
    fn drop(&mut self) {
        self.host.shared.close_ring(self.key);
    }
}

/// Future that is ready when `wanted` results are, or no range is in flight; appends them to
/// `into`.
pub(crate) struct Completed<'a> {
    pub(crate) ring: &'a OwnRing,
    pub(crate) wanted: usize,
    pub(crate) into: &'a mut Vec<RangeCompletion>,
}

impl Future for Completed<'_> {
    type Output = Result<(), Forked>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut state = this.ring.host.shared.lock()?;
        let (key, outbox) = (this.ring.key, &mut state.host.outbox);
        let coming = outbox.in_flight(key);
        let ready = outbox.ready(key);
        if ready.len() >= this.wanted || coming == 0 {
            this.into.extend(ready.drain(..));
            return Poll::Ready(Ok(()));
        }
        outbox.notify(key, this.wanted, context.waker());
        Poll::Pending
    }
}

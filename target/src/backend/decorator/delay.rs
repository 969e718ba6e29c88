//! Delays the operations of a backend.

use std::sync::Arc;
use std::time::Duration;

use rdma::Time;

use crate::backend::{Backend, Step};
use crate::backend::{DelayHold, Operation};

/// Backend that delays each operation, then passes it to the inner backend.
#[derive(Debug)]
pub struct Delay {
    inner: Arc<dyn Backend>,
    delay: Duration,
}

impl Delay {
    /// Delays the operations of `inner`, which must not contain a `Delay` itself.
    pub fn new(inner: Arc<dyn Backend>, delay: Duration) -> Self {
        Self { inner, delay }
    }
}

impl Backend for Delay {
    fn start(&self, now: Time, operation: &mut Operation) -> Step {
        operation.hold = DelayHold::Held;
        Step::WaitUntil(now + self.delay)
    }

    fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step {
        if operation.hold == DelayHold::Held {
            operation.hold = DelayHold::Released;
            return self.inner.start(now, operation);
        }
        self.inner.resume(now, operation, result)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.inner.allocated_bytes()
    }
}

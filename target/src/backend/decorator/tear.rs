//! Injects torn writes into a backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma::Time;

use crate::backend::{Backend, BackendError, Step};
use crate::backend::{Operation, OperationKind};

/// Granularity of torn writes in bytes, a multiple of the alignment of every medium.
const GRAIN_BYTES: u64 = 4096;

/// Backend that stores only the first half of each `every`-th write, and fails it with `EIO`.
#[derive(Debug)]
pub(crate) struct Tear {
    inner: Arc<dyn Backend>,
    every: u64,
    writes: AtomicU64,
}

impl Tear {
    /// Tears each `every`-th write of `inner`; `every` is not 0.
    pub(crate) fn new(inner: Arc<dyn Backend>, every: u64) -> Self {
        Self { inner, every, writes: AtomicU64::new(0) }
    }

    fn picks(&self, operation: &Operation) -> bool {
        matches!(operation.kind(), OperationKind::Write { .. })
            && (self.writes.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every)
    }
}

impl Backend for Tear {
    fn start(&self, now: Time, operation: &mut Operation) -> Step {
        if self.picks(operation) {
            let kept = operation.length() / 2 / GRAIN_BYTES * GRAIN_BYTES;
            if kept == 0 {
                return Step::Done(Err(BackendError::from_errno(libc::EIO)));
            }
            operation.tear(kept);
        }
        let step = self.inner.start(now, operation);
        fail_if_torn(operation, step)
    }

    fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step {
        let step = self.inner.resume(now, operation, result);
        fail_if_torn(operation, step)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.inner.allocated_bytes()
    }
}

fn fail_if_torn(operation: &Operation, step: Step) -> Step {
    match step {
        Step::Done(Ok(())) if operation.is_torn() => {
            Step::Done(Err(BackendError::from_errno(libc::EIO)))
        }
        step => step,
    }
}

//! Injects errors into a backend.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma::Time;

use crate::backend::Operation;
use crate::backend::{Backend, BackendError, Step};

/// Backend that fails the operations that a plan selects and passes the others to the inner
/// backend.
#[derive(Debug)]
pub struct Fault {
    inner: Arc<dyn Backend>,
    plan: FaultPlan,
    seen: AtomicU64,
}

/// Selects the operations that fail, and their error. An operation that matches any of the rules
/// fails.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Error of the selected operations, which do not touch the medium.
    pub error: BackendError,
    /// Number of the operation that fails, counted from 1.
    pub nth: Option<u64>,
    /// Interval of failing operations: each one whose number is a multiple of it fails; 0 selects
    /// none.
    pub every: Option<u64>,
    /// Byte ranges in which operations fail.
    pub ranges: Vec<Range<u64>>,
}

impl FaultPlan {
    /// A plan that selects no operation.
    pub fn new(error: BackendError) -> Self {
        Self { error, nth: None, every: None, ranges: Vec::new() }
    }

    fn picks(&self, number: u64, operation: &Operation) -> bool {
        let (from, to) = (operation.offset(), operation.offset() + operation.length());
        self.nth == Some(number)
            || self.every.is_some_and(|every| every != 0 && number.is_multiple_of(every))
            || self.ranges.iter().any(|range| from < range.end && range.start < to)
    }
}

impl Fault {
    /// Applies `plan` to the operations of `inner`, counting from 1.
    pub fn new(inner: Arc<dyn Backend>, plan: FaultPlan) -> Self {
        Self { inner, plan, seen: AtomicU64::new(0) }
    }
}

impl Backend for Fault {
    fn start(&self, now: Time, operation: &mut Operation) -> Step {
        let number = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if self.plan.picks(number, operation) {
            return Step::Done(Err(self.plan.error));
        }
        self.inner.start(now, operation)
    }

    fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step {
        self.inner.resume(now, operation, result)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.inner.allocated_bytes()
    }
}

//! Makes a backend fail.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma::Time;

use crate::backend::Operation;
use crate::backend::{Backend, BackendError, Step};

/// Fails the operations that a plan picks and passes the others on.
#[derive(Debug)]
pub struct Fault {
    inner: Arc<dyn Backend>,
    plan: FaultPlan,
    seen: AtomicU64,
}

/// Which operations fail, and with which error. An operation fails if any of the rules matches it.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// The error that those operations end with; the medium is not touched.
    pub error: BackendError,
    /// The n-th operation, from 1.
    pub nth: Option<u64>,
    /// Every k-th operation, counted from the first one that the decorator sees.
    pub every: Option<u64>,
    /// Operations that touch one of these byte ranges.
    pub ranges: Vec<Range<u64>>,
}

impl FaultPlan {
    /// A plan that picks nothing yet.
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
    /// Puts the plan in front of `inner`, with no operation counted yet.
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

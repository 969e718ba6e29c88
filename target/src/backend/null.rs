//! A backend that reads zeros and discards writes.

use rdma::Time;

use super::{Backend, Step};
use crate::backend::{Operation, OperationKind};

/// A medium without cost, to measure everything else.
#[derive(Debug)]
pub(crate) struct NullBackend;

impl Backend for NullBackend {
    fn start(&self, _now: Time, operation: &mut Operation) -> Step {
        if operation.kind() == OperationKind::Read {
            // Compare reads the buffer, which holds another request's data.
            operation.bytes().fill(0);
        }
        Step::Done(Ok(()))
    }

    fn resume(&self, _now: Time, _operation: &mut Operation, _result: i32) -> Step {
        unreachable!("it starts nothing")
    }

    fn reads_zeros(&self) -> bool {
        true
    }
}

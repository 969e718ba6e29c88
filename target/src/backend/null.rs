//! Null medium: reads return zeros, writes are discarded.

use rdma::Time;

use super::{Backend, Step};
use crate::backend::{Operation, OperationKind};

/// Backend of a null medium, without I/O, to measure the rest of the target.
#[derive(Debug)]
pub(crate) struct NullBackend;

impl Backend for NullBackend {
    fn start(&self, _now: Time, operation: &mut Operation) -> Step {
        if operation.kind() == OperationKind::Read {
            // For Compare: the buffer still has the data of an earlier request.
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

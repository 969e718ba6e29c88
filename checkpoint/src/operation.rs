//! Operations on a namespace, and their outcomes.

use std::ops::Range;

/// Names an operation within its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// A request with its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOperation {
    /// To be given back with the outcome.
    pub id: OperationId,
    /// What the namespace is asked for.
    pub request: Request,
}

/// What a namespace is asked for. Offsets and lengths are in bytes, multiples of 4096.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Read bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// Write bytes.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes.
        payload: WritePayload,
        /// Force Unit Access: they are durable when the write completes.
        fua: bool,
    },
    /// Make all completed writes durable.
    Flush,
    /// Tell the namespace that bytes are not needed. It may do nothing.
    Deallocate {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The fused commands Compare and Write, with FUA: write only where the namespace has the
    /// expected bytes.
    CompareAndWrite {
        /// First byte.
        offset: u64,
        /// What the namespace should have.
        expected: Vec<u8>,
        /// What it has afterwards.
        bytes: Vec<u8>,
    },
}

/// Bytes to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WritePayload {
    /// Bytes of this crate.
    Bytes(Vec<u8>),
    /// A part of the memory that the caller gave, and zeroes behind it.
    Source {
        /// The bytes of that memory.
        range: Range<usize>,
        /// Number of zeroes.
        padding: usize,
    },
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// Bytes that were read.
    Data(Vec<u8>),
    /// A write, Flush or Deallocate was executed.
    Done,
    /// It failed.
    Failed(Failure),
}

/// Why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Status Capacity Exceeded.
    #[error("the namespace has no capacity left")]
    CapacityExceeded,
    /// Status Compare Failure: nothing was written.
    #[error("the namespace has other bytes than expected")]
    Miscompare,
    /// Status Namespace is Write Protected.
    #[error("the namespace is write protected")]
    WriteProtected,
    /// Any other status, or a lost connection. A write may have been executed.
    #[error("the namespace did not execute the operation")]
    Device,
}

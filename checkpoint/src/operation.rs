//! Operations on a namespace that the caller executes, and their outcomes.

use std::ops::Range;

/// Number of an operation, unique within its [`crate::Run`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub u64);

/// Request to a namespace, with the id under which its outcome is returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeOperation {
    /// Id that the caller passes to [`crate::Run::complete`] with the outcome.
    pub id: OperationId,
    /// Command that the caller sends to the namespace.
    pub request: Request,
}

/// Command for a namespace. Offsets and lengths are in bytes and multiples of 4096.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// NVMe Read of adjacent bytes.
    Read {
        /// First byte in the namespace.
        offset: u64,
        /// Number of bytes to read.
        length: u64,
    },
    /// NVMe Write of adjacent bytes.
    Write {
        /// First byte in the namespace.
        offset: u64,
        /// Bytes to be written there.
        payload: WritePayload,
        /// Force Unit Access: the bytes are durable when the command completes.
        fua: bool,
    },
    /// NVMe Flush: makes all completed writes durable.
    Flush,
    /// NVMe Dataset Management, Deallocate: the bytes are not needed. The namespace may ignore it.
    Deallocate {
        /// First byte in the namespace.
        offset: u64,
        /// Number of bytes to deallocate.
        length: u64,
    },
    /// NVMe Compare and Write as a fused operation, with FUA: writes only if the namespace has the
    /// expected bytes. Both have 4096 bytes.
    CompareAndWrite {
        /// First byte in the namespace.
        offset: u64,
        /// Bytes that the namespace must have before.
        expected: Vec<u8>,
        /// Bytes that are written if it has them.
        bytes: Vec<u8>,
    },
    /// No command: time passes, in which a command that another writer has sent arrives. Its
    /// outcome is [`OperationOutcome::Done`].
    Pause {
        /// Milliseconds until the outcome.
        ms: u64,
    },
}

/// Source of the bytes of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WritePayload {
    /// Bytes that this crate has made: a superblock or a manifest.
    Bytes(Vec<u8>),
    /// Range of the buffer that the caller passed to [`crate::Volume::write`], and zeros behind it.
    Source {
        /// Indexes of the bytes in that buffer.
        range: Range<usize>,
        /// Number of zero bytes to write behind them, less than 4096.
        padding: usize,
    },
}

/// Result of an operation that the caller has executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationOutcome {
    /// A Read succeeded and returned these bytes.
    Data(Vec<u8>),
    /// A request without returned data succeeded: a write, a Flush, a Deallocate or a pause.
    Done,
    /// The command failed for this reason.
    Failed(Failure),
}

/// Reason why an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// NVMe status Capacity Exceeded: a thinly provisioned namespace is full.
    #[error("the namespace has no capacity left")]
    CapacityExceeded,
    /// NVMe status Compare Failure: nothing was written.
    #[error("the namespace has other bytes than expected")]
    Miscompare,
    /// NVMe status Namespace is Write Protected: nothing was written.
    #[error("the namespace is write protected")]
    WriteProtected,
    /// The driver did not send a write, since the lease had ended.
    #[error("the lease ended before the write was sent")]
    LeaseEnded,
    /// Any other status, or a lost connection. A write may have been executed.
    #[error("the operation on the namespace failed")]
    Device,
}

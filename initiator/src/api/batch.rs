//! Batches: many ranges at a time, with a result for each.

use std::sync::Arc;

use crate::api::namespace::Namespace;
use crate::api::pending::Pending;
use crate::api::submit::{BatchRange, RangeOutcome, start};
use crate::driver::host_state::Inner;
use crate::memory::region::RegionSlice;
use crate::types::direction::RangeDirection;
use crate::types::options::BatchOptions;

/// A range to read, as long as the slice.
#[derive(Debug)]
pub struct ReadRange {
    /// The namespace to read from. It must have been opened on the host that reads.
    pub namespace: Namespace,
    /// First byte in the namespace; any alignment.
    pub offset: u64,
    /// Memory that receives the bytes; its length is the number of bytes to read.
    pub into: RegionSlice,
}

/// A range to write, as long as the slice.
#[derive(Debug)]
pub struct WriteRange {
    /// The namespace to write to. It must have been opened on the host that writes.
    pub namespace: Namespace,
    /// First byte in the namespace; any alignment. If other hosts write the same namespace, offset
    /// and length must be multiples of [`block_bytes`](crate::NamespaceInfo::block_bytes): if two
    /// hosts write different parts of one block, one write [is lost](Namespace#several-writers).
    pub offset: u64,
    /// Memory that holds the bytes; its length is the number of bytes to write.
    pub from: RegionSlice,
}

pub(crate) fn read_many(
    host: &Arc<Inner>,
    options: BatchOptions,
    ranges: impl IntoIterator<Item = ReadRange>,
) -> Pending<Vec<RangeOutcome>> {
    let ranges = ranges.into_iter().map(|ReadRange { namespace, offset, into }| {
        BatchRange::new(namespace.reached_over(), offset, into)
    });
    start(host, RangeDirection::Read, options, ranges.collect())
}

pub(crate) fn write_many(
    host: &Arc<Inner>,
    options: BatchOptions,
    ranges: impl IntoIterator<Item = WriteRange>,
) -> Pending<Vec<RangeOutcome>> {
    let ranges = ranges.into_iter().map(|WriteRange { namespace, offset, from }| {
        BatchRange::new(namespace.reached_over(), offset, from)
    });
    start(host, RangeDirection::Write { fua: false }, options, ranges.collect())
}

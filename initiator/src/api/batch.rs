//! Batches: many ranges at a time, with a result for each.

use std::sync::Arc;

use crate::api::namespace::Namespace;
use crate::api::pending::Pending;
use crate::api::submit::{BatchRange, RangeOutcome, start};
use crate::driver::host_state::Inner;
use crate::engine::range_op::RangeDirection;
use crate::memory::region::RegionSlice;
use crate::types::options::BatchOptions;

/// Bytes to read: as many as the slice has.
#[derive(Debug)]
pub struct ReadRange {
    /// The namespace to read from, of the host that reads.
    pub namespace: Namespace,
    /// Where in the namespace to begin, in bytes; any alignment.
    pub offset: u64,
    /// The memory that the bytes land in; its length is the number of bytes.
    pub into: RegionSlice,
}

/// Bytes to write: as many as the slice has.
#[derive(Debug)]
pub struct WriteRange {
    /// The namespace to write to, of the host that writes.
    pub namespace: Namespace,
    /// Where in the namespace to begin, in bytes; any alignment. Where other hosts write the same
    /// namespace, offset and length are to be multiples of
    /// [`block_bytes`](crate::NamespaceInfo::block_bytes): of two hosts that write different parts
    /// of one block, one [loses its bytes](Namespace#several-writers).
    pub offset: u64,
    /// The bytes to write: all that the slice has.
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

//! Counters of the target: I/O of each namespace and connection, errors of peers, and a snapshot of
//! them all.

pub(crate) mod error_counts;
pub(crate) mod exposition;
pub(crate) mod io_counters;
pub(crate) mod latency;
pub(crate) mod namespace_io;
pub(crate) mod page;
pub(crate) mod peer_errors;
pub(crate) mod snapshot;

//! Counters of the target: I/O by subsystem and namespace, errors of hosts, and the metrics page
//! that shows them.

pub(crate) mod authentications;
pub(crate) mod error_counts;
pub(crate) mod exposition;
pub(crate) mod io_counters;
pub(crate) mod latency;
pub(crate) mod namespace_io;
pub(crate) mod page;
pub(crate) mod peer_errors;
pub(crate) mod quotas;
pub(crate) mod snapshot;

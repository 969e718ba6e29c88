//! What the target counts: I/O of each namespace and connection, errors of peers, and a snapshot of
//! all of it.

pub mod io_counters;
pub mod peer_errors;
pub mod snapshot;

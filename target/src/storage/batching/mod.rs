//! Batching: holds back system calls from devices whose throughput that raises.

pub(crate) mod gate;
pub(crate) mod trial;

//! Types that both the public interface and the engine use: errors, counters, options, and those
//! that stand for types of `rdma`.

pub(crate) mod authentication_failure;
pub(crate) mod counters;
pub(crate) mod direction;
pub(crate) mod error;
pub(crate) mod host_trace;
pub(crate) mod options;
pub(crate) mod plan;
pub(crate) mod provider;
pub(crate) mod time;
pub(crate) mod turn;

//! Quality of service: quotas of I/O commands and bytes per second of hosts and of namespaces.
//!
//! A [`Quota`] is shared by all cores and has no lock: each of its limits is a [`TokenBucket`], one
//! atomic number. Commands that have to wait do so on their core, see `core_context::throttle`.

mod quota;
mod token_bucket;

pub(crate) use self::quota::{Quota, QuotaStats, Toll, TollDirection};

//! The clock that drivers read.

use rdma::Time;
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the system's monotonic clock.
pub(crate) fn system_now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither field is negative on a monotonic clock.
    Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

//! Clocks and sleep for commands of the CLI. Libraries receive the time as an argument.

use core::time::Duration;
use std::thread;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

#[expect(clippy::disallowed_methods, reason = "measuring elapsed time is what perf and demo do")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since 1970 (UTC), from the system clock.
#[expect(clippy::disallowed_methods, reason = "traces of two machines are put together by it")]
pub(crate) fn unix_nanos() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of all threads of this process so far.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    // Neither is negative on a CPU-time clock.
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Blocks the calling thread: bench-loader simulates a training job's computing with it.
#[expect(clippy::disallowed_methods, reason = "there is no event to wait for")]
pub(crate) fn sleep(time: Duration) {
    thread::sleep(time);
}

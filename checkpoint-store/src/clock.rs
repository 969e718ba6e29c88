//! The system clock, by which leases are kept, the clock of counters, and pauses.

use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970 (UTC).
#[expect(clippy::disallowed_methods, reason = "leases end at a time that several machines know")]
pub(crate) fn unix_ms() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[expect(clippy::disallowed_methods, reason = "counters have the time that saves and reads took")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits until a time has passed.
#[expect(clippy::disallowed_methods, reason = "a lease is contested for a time, without an event")]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}

//! The system clock, by which leases are kept, and the clock of counters.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

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

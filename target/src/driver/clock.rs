//! Clock of the drivers, which pass the time to other code.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rdma::Time;

/// Monotonic clock that counts from its creation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a driver reads the clock")]
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        let nanos = u64::try_from(self.0.elapsed().as_nanos());
        // Starts at 1, so that nothing happens at [`Time::ZERO`]. It lasts for 584 years.
        Time::from_nanos(nanos.map_or(u64::MAX, |nanos| nanos + 1))
    }

    /// Unix time of [`Time::ZERO`] in nanoseconds, by the present time of the system's clock.
    #[expect(clippy::disallowed_methods, reason = "a driver reads the clock")]
    pub(crate) fn origin_unix_nanos(&self) -> u64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        nanos.saturating_sub(self.now().as_nanos())
    }
}

//! The clock of the drivers.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rdma::Time;

/// Tells the time since it was made. Only drivers have one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "a driver reads the clock")]
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        let nanos = u64::try_from(self.0.elapsed().as_nanos());
        // From one on, so that nothing happens before the origin. It lasts for 584 years.
        Time::from_nanos(nanos.map_or(u64::MAX, |nanos| nanos + 1))
    }

    /// Nanoseconds between 1970 and [`Time::ZERO`], as the system's clock has it now.
    #[expect(clippy::disallowed_methods, reason = "a driver reads the clock")]
    pub(crate) fn origin_unix_nanos(&self) -> u64 {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let nanos = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        nanos.saturating_sub(self.now().as_nanos())
    }
}

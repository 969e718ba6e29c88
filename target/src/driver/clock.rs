//! The clock of the drivers.

use std::time::Instant;

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
}

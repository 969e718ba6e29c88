//! Time as a polled host measures it.

use std::time::Duration;

use rdma::Time;

/// Nanoseconds since the origin of a monotonic clock. A polled host measures all time-outs by the
/// times that are passed to [`Host::turn`](crate::Host::turn): [`Host::now`](crate::Host::now) with
/// real devices, the virtual time of the simulation with simulated ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MonotonicTime {
    nanos: u64,
}

impl MonotonicTime {
    /// Returns the time `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Returns the duration from `earlier` to `self`, or zero if `earlier` is later. If `self` is a
    /// deadline and `earlier` the present time, it is how long the caller may sleep.
    pub const fn saturating_duration_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }

    pub(crate) const fn of(time: Time) -> Self {
        Self::from_nanos(time.as_nanos())
    }

    pub(crate) const fn time(self) -> Time {
        Time::from_nanos(self.nanos)
    }
}

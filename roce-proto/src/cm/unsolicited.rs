//! Rate limit for unsolicited datagrams to endpoints that have not proved that they receive ours.

use core::time::Duration;

use crate::Time;

/// Counts such datagrams for all endpoints together: since source addresses may be forged, a limit
/// per address would not limit a peer that forges many.
#[derive(Debug, Default)]
pub(super) struct Unsolicited {
    /// Start of the present period of one second.
    start: Time,
    sent: u32,
}

impl Unsolicited {
    const PERIOD: Duration = Duration::from_secs(1);

    /// Counts a datagram; returns false if `per_second` were already sent in this period.
    pub(super) fn take(&mut self, now: Time, per_second: u32) -> bool {
        if now - self.start >= Self::PERIOD {
            *self = Self { start: now, sent: 0 };
        }
        let allowed = self.sent < per_second;
        self.sent += u32::from(allowed);
        allowed
    }
}

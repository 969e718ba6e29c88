//! The bound on datagrams that are sent to endpoints which have not shown that they receive, and
//! that answer none of their datagrams.

use core::time::Duration;

use crate::Time;

/// Counts such datagrams, those for all endpoints together: the address of a request may be forged,
/// so that a bound for each address would not bound a peer that forges many.
#[derive(Debug, Default)]
pub(super) struct Unsolicited {
    /// When the period began that is counted.
    start: Time,
    sent: u32,
}

impl Unsolicited {
    const PERIOD: Duration = Duration::from_secs(1);

    /// Takes leave to send one more answer; `per_second` are allowed.
    pub(super) fn take(&mut self, now: Time, per_second: u32) -> bool {
        if now - self.start >= Self::PERIOD {
            *self = Self { start: now, sent: 0 };
        }
        let allowed = self.sent < per_second;
        self.sent += u32::from(allowed);
        allowed
    }
}

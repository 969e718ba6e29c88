//! Work requests that complete when the host acknowledges them: data and responses that it
//! receives, and data that it supplies.

use std::time::Duration;

use rdma::Time;

use crate::limits::HOST_LEAST_BYTES_PER_SECOND;

/// Outstanding work requests, and the deadline by which the host has to acknowledge them. Slow
/// partial acknowledgements do not extend the deadline: all requests outstanding at one moment have
/// a common one, and later requests get the next, so each is outstanding for two periods at most.
#[derive(Debug)]
pub(super) struct Outstanding {
    timeout: Duration,
    entries: u32,
    bytes: u64,
    /// Number of the oldest entries, which must complete by `due`.
    due_entries: u32,
    due: Time,
}

impl Outstanding {
    /// Creates it for a host that gets `timeout`, and more time for much data.
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, entries: 0, bytes: 0, due_entries: 0, due: Time::ZERO }
    }

    /// Adds an entry of the send queue, which moves `bytes`.
    pub(super) fn posted(&mut self, now: Time, bytes: u32) {
        self.entries += 1;
        self.bytes += u64::from(bytes);
        if self.due_entries == 0 {
            self.expect_all(now);
        }
    }

    /// Removes the `entries` oldest entries, which moved `bytes`.
    pub(super) fn done(&mut self, now: Time, entries: u32, bytes: u32) {
        self.entries -= entries;
        self.bytes -= u64::from(bytes);
        self.due_entries = self.due_entries.saturating_sub(entries);
        if self.due_entries == 0 && self.entries > 0 {
            self.expect_all(now);
        }
    }

    fn expect_all(&mut self, now: Time) {
        let nanos = self.bytes.saturating_mul(1_000_000_000) / HOST_LEAST_BYTES_PER_SECOND;
        self.due_entries = self.entries;
        self.due = now + self.timeout + Duration::from_nanos(nanos);
    }

    /// Deadline of the host; `None` if nothing is outstanding.
    pub(super) fn deadline(&self) -> Option<Time> {
        (self.due_entries > 0).then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(10);
    const RESPONSES: u32 = 64;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(1) + Duration::from_secs(seconds)
    }

    fn is_late(outstanding: &Outstanding, now: Time) -> bool {
        outstanding.deadline().is_some_and(|due| due <= now)
    }

    #[test]
    fn nothing_outstanding_has_no_deadline() {
        let mut outstanding = Outstanding::new(TIMEOUT);
        assert_eq!(outstanding.deadline(), None);
        outstanding.posted(at(0), 0);
        assert_eq!(outstanding.deadline(), Some(at(10)));
        outstanding.done(at(1), 1, 0);
        assert_eq!(outstanding.deadline(), None);
        outstanding.posted(at(100), 0);
        assert_eq!(outstanding.deadline(), Some(at(110)));
    }

    #[test]
    fn one_response_now_and_then_is_not_enough() {
        let mut outstanding = Outstanding::new(TIMEOUT);
        (0..RESPONSES).for_each(|_| outstanding.posted(at(0), 0));
        outstanding.done(at(9), 1, 0);
        assert!(!is_late(&outstanding, at(10)));
        outstanding.done(at(18), 1, 0);
        assert!(is_late(&outstanding, at(19)), "the others have waited since the first");
    }

    #[test]
    fn a_host_that_keeps_up_never_times_out() {
        let mut outstanding = Outstanding::new(TIMEOUT);
        (0..RESPONSES).for_each(|_| outstanding.posted(at(0), 16));
        for second in 1..1000 {
            outstanding.done(at(second), RESPONSES / 2, RESPONSES / 2 * 16);
            assert!(!is_late(&outstanding, at(second)));
            (0..RESPONSES / 2).for_each(|_| outstanding.posted(at(second), 16));
        }
    }

    #[test]
    fn much_data_may_take_longer() {
        let mut outstanding = Outstanding::new(TIMEOUT);
        let mib = HOST_LEAST_BYTES_PER_SECOND as u32;
        (0..RESPONSES).for_each(|_| outstanding.posted(at(0), mib));
        outstanding.done(at(1), 1, mib);
        let due = at(1) + TIMEOUT + Duration::from_secs(63);
        assert_eq!(outstanding.deadline(), Some(due));
        for second in 2..u64::from(RESPONSES) {
            outstanding.done(at(second), 1, mib);
            assert!(!is_late(&outstanding, at(second)));
        }
    }
}

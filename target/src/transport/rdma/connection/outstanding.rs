//! Work requests that the host has to acknowledge: responses and data that it receives (Send, RDMA
//! WRITE), and data that it supplies (RDMA READ).

use std::time::Duration;

use rdma::Time;

use crate::limits::HOST_LEAST_BYTES_PER_SECOND;

/// Number of outstanding work requests, and the deadline by which the host has to acknowledge them.
/// Partial acknowledgements do not extend the deadline: all requests that are outstanding at one
/// moment share a deadline, and later requests get the next one, so each is outstanding for two
/// periods at most.
#[derive(Debug)]
pub(super) struct Outstanding {
    timeout: Duration,
    entries: u32,
    bytes: u64,
    /// Number of the oldest entries, which have to complete by `due`.
    due_entries: u32,
    /// Deadline of these entries.
    due: Time,
}

impl Outstanding {
    /// Creates it without requests. A period lasts for `timeout`, plus the time for the outstanding
    /// bytes at [`HOST_LEAST_BYTES_PER_SECOND`].
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, entries: 0, bytes: 0, due_entries: 0, due: Time::ZERO }
    }

    /// Adds a posted entry of the send queue, which moves `bytes` bytes of data.
    pub(super) fn posted(&mut self, now: Time, bytes: u32) {
        self.entries += 1;
        self.bytes += u64::from(bytes);
        if self.due_entries == 0 {
            self.expect_all(now);
        }
    }

    /// Removes the `entries` oldest entries, which moved `bytes` bytes of data.
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

    /// Deadline for the host; `None` if no work request is outstanding.
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

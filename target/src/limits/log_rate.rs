//! Rate limit of log messages that peers can cause.

use std::sync::{Mutex, PoisonError};

use rdma::Time;

use crate::limits::{PEER_MESSAGES, PEER_MESSAGES_PERIOD};

/// Admits [`PEER_MESSAGES`] messages in each [`PEER_MESSAGES_PERIOD`], and logs how many it
/// suppressed.
#[derive(Debug)]
pub(crate) struct LogRateLimit {
    /// Subject of the messages, for the line about suppressed ones.
    subject: &'static str,
    period: Mutex<RatePeriod>,
}

/// Numbers of messages written and suppressed in the current period.
#[derive(Debug, Default)]
pub(crate) struct RatePeriod {
    start: Time,
    said: u32,
    kept_back: u64,
}

/// Decision whether log messages may be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineAdmission {
    pub(crate) is_admitted: bool,
    /// Suppressed messages of earlier periods that were not reported yet.
    pub(crate) left_out_before: u64,
}

impl RatePeriod {
    /// Counts `messages`, and decides whether all of them may be written, or none.
    pub(crate) fn admit(&mut self, now: Time, messages: u32) -> LineAdmission {
        let mut left_out_before = 0;
        if now - self.start >= PEER_MESSAGES_PERIOD {
            left_out_before = self.kept_back;
            *self = Self { start: now, ..Self::default() };
        }
        let is_admitted = self.said + messages <= PEER_MESSAGES;
        if is_admitted {
            self.said += messages;
        } else {
            self.kept_back += u64::from(messages);
        }
        LineAdmission { is_admitted, left_out_before }
    }
}

impl LogRateLimit {
    /// Creates a limit for messages about `subject`.
    pub(crate) fn about(subject: &'static str) -> Self {
        Self { subject, period: Mutex::default() }
    }

    /// Whether one more message may be written now.
    pub(crate) fn admit(&self, now: Time) -> bool {
        self.allows_all(now, 1)
    }

    /// Whether `messages` may be written, the first of them now: the end of an association is
    /// logged if and only if its start was.
    pub(crate) fn allows_all(&self, now: Time, messages: u32) -> bool {
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        let LineAdmission { is_admitted, left_out_before } = period.admit(now, messages);
        if left_out_before > 0 {
            let subject = self.subject;
            tracing::warn!(messages = left_out_before, "messages about {subject} were left out");
        }
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn said(log_rate: &LogRateLimit, at: Duration, messages: u32) -> u32 {
        let now = Time::ZERO + at;
        (0..1000).filter(|_| log_rate.allows_all(now, messages)).map(|_| messages).sum()
    }

    #[test]
    fn a_flood_is_limited_until_the_next_period() {
        let log_rate = LogRateLimit::about("hosts");
        let start = 5 * PEER_MESSAGES_PERIOD;
        assert_eq!(said(&log_rate, start, 1), PEER_MESSAGES);
        assert_eq!(said(&log_rate, start + PEER_MESSAGES_PERIOD - Duration::from_nanos(1), 1), 0);
        assert_eq!(said(&log_rate, start + PEER_MESSAGES_PERIOD, 1), PEER_MESSAGES);
    }

    #[test]
    fn related_messages_are_admitted_together() {
        let log_rate = LogRateLimit::about("hosts");
        assert_eq!(said(&log_rate, Duration::ZERO, 3), PEER_MESSAGES / 3 * 3);
        assert_eq!(said(&log_rate, Duration::ZERO, 1), PEER_MESSAGES % 3);
    }
}

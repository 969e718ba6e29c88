//! A bound on what peers can make the target write into its log.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rdma::Time;

use crate::limits::PEER_MESSAGES_PER_SECOND;

/// Lets through so many messages a second, and says how many it kept back.
#[derive(Debug, Default)]
pub(crate) struct Chatter {
    second: Mutex<Second>,
}

#[derive(Debug, Default)]
struct Second {
    start: Time,
    said: u32,
    kept_back: u64,
}

impl Chatter {
    /// Whether one more message may be written now.
    pub(crate) fn allows(&self, now: Time) -> bool {
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        if now - second.start >= Duration::from_secs(1) {
            if second.kept_back > 0 {
                tracing::warn!(messages = second.kept_back, "messages about hosts were left out");
            }
            *second = Second { start: now, ..Second::default() };
        }
        let allowed = second.said < PEER_MESSAGES_PER_SECOND;
        if allowed {
            second.said += 1;
        } else {
            second.kept_back += 1;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_quiet_lets_it_speak_again() {
        let chatter = Chatter::default();
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        let said = |millis| (0..1000).filter(|_| chatter.allows(at(millis))).count();
        assert_eq!(said(5000), PEER_MESSAGES_PER_SECOND as usize);
        assert_eq!(said(5999), 0);
        assert_eq!(said(6000), PEER_MESSAGES_PER_SECOND as usize);
    }
}

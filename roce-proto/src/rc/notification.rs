//! Generation of congestion notification packets (CNPs).

use core::mem;
use core::time::Duration;

use crate::Time;

/// Minimum interval between two CNPs of a queue pair, as on most adapters.
const INTERVAL: Duration = Duration::from_micros(50);

/// The notification point of DCQCN: a packet with ECN Congestion Experienced is answered with a
/// CNP, unless one was sent less than `INTERVAL` ago.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NotificationPoint {
    latest: Option<Time>,
    due: bool,
}

impl NotificationPoint {
    /// Records a received packet with Congestion Experienced.
    pub(super) fn marked(&mut self, now: Time) {
        self.due |= self.latest.is_none_or(|latest| now - latest >= INTERVAL);
    }

    /// Whether a CNP must be sent.
    pub(super) const fn is_due(&self) -> bool {
        self.due
    }

    /// Whether a CNP must be sent; if so, the caller sends it now.
    pub(super) fn take(&mut self, now: Time) -> bool {
        let due = mem::take(&mut self.due);
        if due {
            self.latest = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However marks come, and however late notifications leave.
        #[test]
        fn notifications_keep_their_distance(
            steps in prop::collection::vec((0_u64..80, any::<bool>()), 1..200)
        ) {
            let mut point = NotificationPoint::default();
            let mut now = Time::from_nanos(1_000_000);
            let mut latest: Option<Time> = None;
            let mut marked = false;
            for (micros, sends) in steps {
                now = now + Duration::from_micros(micros);
                if sends {
                    if point.take(now) {
                        prop_assert!(marked, "nothing was marked since");
                        prop_assert!(latest.is_none_or(|latest| now - latest >= INTERVAL));
                        (latest, marked) = (Some(now), false);
                    }
                } else {
                    let far = latest.is_none_or(|latest| now - latest >= INTERVAL);
                    point.marked(now);
                    marked |= far;
                    prop_assert_eq!(point.is_due(), marked);
                }
            }
        }
    }
}

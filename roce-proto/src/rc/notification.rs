//! When the peer is told of congestion on the way from it.

use core::mem;
use core::time::Duration;

use crate::Time;

/// The least time between two congestion notifications of a queue pair: that of most adapters.
const INTERVAL: Duration = Duration::from_micros(50);

/// The notification point of DCQCN: a packet with Congestion Experienced is answered with a
/// congestion notification, unless one has just left.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NotificationPoint {
    latest: Option<Time>,
    due: bool,
}

impl NotificationPoint {
    /// A marked packet came.
    pub(super) fn marked(&mut self, now: Time) {
        self.due |= self.latest.is_none_or(|latest| now - latest >= INTERVAL);
    }

    /// Whether a notification is to be sent.
    pub(super) const fn is_due(&self) -> bool {
        self.due
    }

    /// Whether a notification is to be sent now, which the caller does.
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

//! The threads that sleep on the descriptors of a host, or are about to.

/// The threads that have armed wake-ups and are not known to be awake.
///
/// A wake-up is armed once, and its descriptor stays readable until it is consumed. If a thread
/// consumed it while others sleep, nothing would be armed for those. So only the last thread to
/// wake consumes it.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    asleep: usize,
    /// Whether the owner of a polled host is one of them.
    owner: bool,
    /// Whether one of those that woke was interrupted.
    interrupted: bool,
}

/// Wake-ups to consume besides those of the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consumed {
    /// Whether the interrupt descriptor was readable.
    pub(crate) interrupt: bool,
}

impl Sleepers {
    /// Counts a thread that arms wake-ups, under the same lock. [`Sleepers::wake`] must follow,
    /// whether it sleeps or not.
    pub(crate) fn fall_asleep(&mut self) {
        self.asleep += 1;
    }

    /// Subtracts a thread that is awake; `None` if it must not consume wake-ups.
    pub(crate) fn wake(&mut self, interrupted: bool) -> Option<Consumed> {
        self.asleep -= 1;
        self.interrupted |= interrupted;
        self.consumed()
    }

    /// Counts the owner of a polled host, who may arm wake-ups repeatedly.
    pub(crate) fn owner_falls_asleep(&mut self) {
        self.owner = true;
    }

    /// Subtracts the owner of a polled host, who does not sleep after all.
    pub(crate) fn owner_stays_awake(&mut self) {
        self.owner = false;
    }

    /// Subtracts the owner of a polled host after a sleep. Whether it was interrupted is not known.
    pub(crate) fn owner_wakes(&mut self) -> Option<Consumed> {
        self.owner = false;
        self.interrupted = true;
        self.consumed()
    }

    fn consumed(&mut self) -> Option<Consumed> {
        let is_last = self.asleep == 0 && !self.owner;
        is_last.then(|| Consumed { interrupt: std::mem::take(&mut self.interrupted) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING_MORE: Option<Consumed> = Some(Consumed { interrupt: false });
    const INTERRUPT: Option<Consumed> = Some(Consumed { interrupt: true });

    #[test]
    fn the_last_to_wake_consumes() {
        let mut sleepers = Sleepers::default();
        sleepers.fall_asleep();
        assert_eq!(sleepers.wake(false), NOTHING_MORE);
        sleepers.fall_asleep();
        sleepers.fall_asleep();
        assert_eq!(sleepers.wake(true), None);
        sleepers.fall_asleep();
        assert_eq!(sleepers.wake(false), None);
        assert_eq!(sleepers.wake(false), INTERRUPT);
        sleepers.fall_asleep();
        assert_eq!(sleepers.wake(false), NOTHING_MORE);
    }

    #[test]
    fn an_owner_may_ask_more_than_once() {
        let mut sleepers = Sleepers::default();
        sleepers.owner_falls_asleep();
        sleepers.owner_falls_asleep();
        sleepers.fall_asleep();
        assert_eq!(sleepers.wake(false), None);
        assert_eq!(sleepers.owner_wakes(), INTERRUPT);
        assert_eq!(sleepers.owner_wakes(), INTERRUPT);
        sleepers.owner_falls_asleep();
        sleepers.owner_stays_awake();
        sleepers.fall_asleep();
        assert_eq!(sleepers.wake(false), NOTHING_MORE);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

//! Who sleeps on the descriptors of a host, or is about to.

/// The threads that have asked for wake-ups and are not known to be awake.
///
/// A wake-up is asked for once, and told by a descriptor that stays readable until it is consumed.
/// Whoever consumes it takes it from the others that sleep, who would sleep on with nothing asked
/// for. So none does but the last one to wake.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    asleep: usize,
    /// The owner of a polled host is one of them.
    owner: bool,
    /// One of those that woke was interrupted.
    interrupted: bool,
}

/// Wake-ups that the last sleeper to wake consumes besides those of the engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Consumed {
    /// The descriptor that interrupts was readable.
    pub(crate) interrupt: bool,
}

impl Sleepers {
    /// A thread asks for wake-ups, under the lock under which it does. [`Sleepers::wake`] comes
    /// after, slept or not.
    pub(crate) fn fall_asleep(&mut self) {
        self.asleep += 1;
    }

    /// A thread is awake; `None` if it must consume nothing.
    pub(crate) fn wake(&mut self, interrupted: bool) -> Option<Consumed> {
        self.asleep -= 1;
        self.interrupted |= interrupted;
        self.consumed()
    }

    /// The owner of a polled host asks for wake-ups, once more or for the first time.
    pub(crate) fn owner_falls_asleep(&mut self) {
        self.owner = true;
    }

    /// The owner of a polled host does not sleep.
    pub(crate) fn owner_stays_awake(&mut self) {
        self.owner = false;
    }

    /// The owner of a polled host has slept, and cannot tell what woke it.
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

//! The engines of a host, and the state of the threads that drive them.

use std::thread::Thread;

use rdma::Time;

use crate::driver::sleepers::Sleepers;
use crate::engine::NextTurn;
use crate::engine::deferred::Deferred;
use crate::engine::host_engines::HostEngines;

/// State of a host that its lock protects.
#[derive(Default)]
pub(crate) struct DriverState {
    pub(crate) host: HostEngines,
    /// Number of callers that drive or wait to.
    pub(super) callers: usize,
    /// Number of callers so far; while it changes, the host's thread leaves the engines to them.
    pub(super) visits: u64,
    pub(super) sleepers: Sleepers,
    /// Sleep of a caller on the descriptors.
    pub(super) caller_sleep: Sleep,
    /// Sleep of the host's thread on the descriptors.
    pub(super) thread_sleep: Sleep,
    /// Time at which the engines must be turned again, as of the last turn.
    pub(super) due: Option<Time>,
    /// Callers that wait without driving; one is woken when the caller that sleeps on the
    /// descriptors leaves.
    pub(super) parked: Vec<Thread>,
    /// Whether the host's thread must process work that no waiting caller drives.
    pub(super) kicked: bool,
    pub(super) closing: bool,
    /// Lists for deferred work, whose capacity is kept.
    pub(super) deferred: Deferred,
}

/// Whether a thread sleeps on the descriptors, and until when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sleep {
    #[default]
    Awake,
    /// Asleep until an event.
    UntilEvent,
    /// Asleep until an event, at most until this time.
    Until(Time),
}

impl Sleep {
    pub(super) fn until(time: Option<Time>) -> Self {
        time.map_or(Self::UntilEvent, Self::Until)
    }

    /// Returns whether the thread sleeps longer than until this time, without an event.
    pub(super) fn outlasts(self, time: Time) -> bool {
        match self {
            Self::Awake => false,
            Self::UntilEvent => true,
            Self::Until(end) => time < end,
        }
    }
}

impl DriverState {
    pub(super) fn arm(&mut self) {
        self.host.engines.values_mut().for_each(|engine| engine.arm());
    }

    /// Wakes a caller that waits for another to drive, if none does.
    pub(super) fn wake_parked(&mut self) {
        if self.caller_sleep == Sleep::Awake
            && let Some(next) = self.parked.pop()
        {
            next.unpark();
        }
    }

    pub(super) fn turn(&mut self, now: Time) -> NextTurn {
        let turn = self.host.turn(now);
        self.due = match turn {
            NextTurn::Busy => Some(now),
            NextTurn::SleepUntil(due) => due,
        };
        turn
    }

    pub(super) fn launch(&mut self, now: Time) {
        // A previous turn may have left work.
        let had_work = self.due.is_some_and(|time| time <= now);
        self.due = match self.host.launch(now) {
            NextTurn::SleepUntil(due) if !had_work => due,
            _ => Some(now),
        };
    }

    /// Returns whether a thread sleeps on the descriptors beyond the time at which the engines must
    /// be turned.
    pub(super) fn is_overslept(&self) -> bool {
        let sleeps = [self.thread_sleep, self.caller_sleep];
        self.due.is_some_and(|due| sleeps.into_iter().any(|sleep| sleep.outlasts(due)))
    }

    pub(super) fn take_deferred(&mut self) -> Option<Deferred> {
        if !self.host.outbox.has_deferred() {
            return None;
        }
        let mut deferred = std::mem::take(&mut self.deferred);
        self.host.outbox.take_deferred(&mut deferred);
        Some(deferred)
    }
}

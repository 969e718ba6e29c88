//! Result of a turn of a polled host.

use crate::engine::NextTurn;
use crate::types::time::MonotonicTime;

/// When to call [`Host::turn`](crate::Host::turn) again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineTurn {
    /// More work is ready: call it again immediately.
    Busy,
    /// No work is due before this time (`None`: at no time), unless the host's descriptor becomes
    /// readable earlier.
    SleepUntil(Option<MonotonicTime>),
}

impl EngineTurn {
    pub(crate) fn of(turn: NextTurn) -> Self {
        match turn {
            NextTurn::Busy => Self::Busy,
            NextTurn::SleepUntil(due) => Self::SleepUntil(due.map(MonotonicTime::of)),
        }
    }
}

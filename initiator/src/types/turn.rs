//! The result of a turn of a polled host.

use crate::engine::NextTurn;
use crate::types::time::MonotonicTime;

/// Whether more is ready after a turn, else when to turn again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineTurn {
    /// More is ready: turn again immediately.
    Busy,
    /// Nothing before this time, unless something wakes the host earlier.
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

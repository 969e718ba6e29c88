//! What a turn of a polled host leaves to do.

use crate::engine::NextTurn;
use crate::types::time::MonotonicTime;

/// What is left to do after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineTurn {
    /// More is ready: turn again at once.
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

//! Knowledge that the caller of a manager has of a connection.

/// Progress of the caller with one connection, which decides who has to be told of its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// The connection is a peer's request that waits among the events.
    Uninformed,
    /// The caller created the connection, or has got an event of it.
    Informed,
    /// The caller has closed the connection: only the disconnect is left to send, and no event
    /// follows.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallerEvent {
    /// The caller takes an event of the connection.
    Told,
    /// The caller closes the connection.
    Closed,
    /// The connection has ended.
    Ended,
}

impl Caller {
    /// Returns the progress after an event; `None` if the connection is to be removed, since nobody
    /// has to learn of its end.
    pub(super) fn step(self, event: CallerEvent) -> Option<Self> {
        match (self, event) {
            (Self::Uninformed | Self::Informed, CallerEvent::Told)
            | (Self::Informed, CallerEvent::Ended) => Some(Self::Informed),
            (_, CallerEvent::Closed) | (Self::Done, CallerEvent::Told) => Some(Self::Done),
            (Self::Uninformed | Self::Done, CallerEvent::Ended) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_learns_of_the_end_of_what_it_knows_and_has_not_closed() {
        let [told, closed, ended] = [CallerEvent::Told, CallerEvent::Closed, CallerEvent::Ended];
        let [uninformed, informed, done] = [Caller::Uninformed, Caller::Informed, Caller::Done];
        for (caller, event, expected) in [
            (uninformed, told, Some(informed)),
            (uninformed, closed, Some(done)),
            (uninformed, ended, None),
            (informed, told, Some(informed)),
            (informed, closed, Some(done)),
            (informed, ended, Some(informed)),
            (done, told, Some(done)),
            (done, closed, Some(done)),
            (done, ended, None),
        ] {
            assert_eq!(caller.step(event), expected, "{caller:?}, {event:?}");
        }
    }
}

//! Progress of a connection between its poll group and the connection manager.

use super::message::ConnectionUpdate;

/// Progress of a connection from its request until poll group and connection manager are done with
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrackedProgress {
    /// The poll group prepares it, and the host waits for the answer to its request.
    Placing,
    /// The connection was accepted at the connection manager.
    Accepted { connected: bool },
    /// The connection ends at one side at least.
    Closing {
        connected: bool,
        /// Who is not done with it yet.
        awaits: Awaited,
    },
}

/// Parties that are not done yet with a connection that ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The poll group, and the confirmation of the disconnect.
    Both,
    /// The poll group, which still has the queue pair.
    Group,
    /// The connection manager, which has not confirmed the disconnect.
    Manager,
}

/// Event of a connection for [`TrackedProgress::step`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TrackedEvent {
    /// Message of its poll group, to which [`TrackedProgress::answer`] was given.
    Group(ConnectionUpdate),
    /// The connection manager has nothing more to report: the connection was lost, its disconnect
    /// is confirmed, or the device failed.
    Lost,
}

/// Call of the connection manager that a message of the poll group requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupAnswer {
    /// Accept its request, since its receives are posted.
    Accept,
    /// Reject its request, since the poll group cannot serve it.
    Reject,
    /// Disconnect it, since the poll group has ended it.
    Disconnect,
}

impl TrackedProgress {
    /// Returns the answer to a message of the poll group; `None` if it needs none.
    pub(super) fn answer(self, update: ConnectionUpdate) -> Option<GroupAnswer> {
        match (self, update) {
            (Self::Placing, ConnectionUpdate::Ready) => Some(GroupAnswer::Accept),
            (Self::Placing, ConnectionUpdate::Ending | ConnectionUpdate::Refused) => {
                Some(GroupAnswer::Reject)
            }
            (Self::Accepted { .. }, ConnectionUpdate::Ending) => Some(GroupAnswer::Disconnect),
            _ => None,
        }
    }

    /// Returns the progress after an event; `None` if the connection is to be removed. An event
    /// that cannot follow, or that has no effect any longer, changes nothing.
    pub(super) fn step(self, event: TrackedEvent) -> Option<Self> {
        use ConnectionUpdate::{Connected, Ending, Gone, Ready, Refused};
        use TrackedEvent::{Group, Lost};
        let closing = |connected, awaits| Some(Self::Closing { connected, awaits });
        match (self, event) {
            (Self::Placing, Group(Ready)) => Some(Self::Accepted { connected: false }),
            (Self::Placing, Group(Ending) | Lost) => closing(false, Awaited::Group),
            (Self::Placing, Group(Refused)) => None,
            (Self::Accepted { .. }, Group(Connected)) => Some(Self::Accepted { connected: true }),
            (Self::Accepted { connected }, Group(Ending)) => closing(connected, Awaited::Both),
            (Self::Accepted { connected }, Lost) => closing(connected, Awaited::Group),
            (Self::Closing { connected, awaits: Awaited::Both }, Group(Gone)) => {
                closing(connected, Awaited::Manager)
            }
            (Self::Closing { connected, awaits: Awaited::Both }, Lost) => {
                closing(connected, Awaited::Group)
            }
            // The poll group had not read yet that the connection was lost.
            (Self::Closing { awaits: Awaited::Group, .. }, Group(Connected)) => {
                closing(true, Awaited::Group)
            }
            (Self::Closing { awaits: Awaited::Group, .. }, Group(Gone | Refused))
            | (Self::Closing { awaits: Awaited::Manager, .. }, Lost) => None,
            (unchanged, _) => Some(unchanged),
        }
    }

    pub(super) fn is_connected(self) -> bool {
        match self {
            Self::Placing => false,
            Self::Accepted { connected } | Self::Closing { connected, .. } => connected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [TrackedEvent; 6] = [
        TrackedEvent::Group(ConnectionUpdate::Ready),
        TrackedEvent::Group(ConnectionUpdate::Connected),
        TrackedEvent::Group(ConnectionUpdate::Refused),
        TrackedEvent::Group(ConnectionUpdate::Ending),
        TrackedEvent::Group(ConnectionUpdate::Gone),
        TrackedEvent::Lost,
    ];
    const PLACING: TrackedProgress = TrackedProgress::Placing;

    fn accepted(connected: bool) -> TrackedProgress {
        TrackedProgress::Accepted { connected }
    }

    fn closing(connected: bool, awaits: Awaited) -> TrackedProgress {
        TrackedProgress::Closing { connected, awaits }
    }

    /// Progress after each of `EVENTS`, legal and illegal.
    fn steps(from: TrackedProgress) -> [Option<TrackedProgress>; 6] {
        EVENTS.map(|event| from.step(event))
    }

    #[test]
    fn a_request_is_accepted_or_rejected() {
        let [same, over] = [Some(PLACING), Some(closing(false, Awaited::Group))];
        let expected = [Some(accepted(false)), same, None, over, same, over];
        assert_eq!(steps(PLACING), expected);
    }

    #[test]
    fn an_accepted_connection_ends_by_its_group_or_the_manager() {
        for connected in [false, true] {
            let from = accepted(connected);
            let [ended, lost] =
                [Awaited::Both, Awaited::Group].map(|awaits| Some(closing(connected, awaits)));
            let same = Some(from);
            let expected = [same, Some(accepted(true)), same, ended, same, lost];
            assert_eq!(steps(from), expected);
        }
    }

    #[test]
    fn a_closing_connection_is_removed_when_both_are_done() {
        for connected in [false, true] {
            let [both, group, manager] = [Awaited::Both, Awaited::Group, Awaited::Manager]
                .map(|awaits| closing(connected, awaits));
            let same = Some(both);
            assert_eq!(steps(both), [same, same, same, same, Some(manager), Some(group)]);
            let (same, late) = (Some(group), Some(closing(true, Awaited::Group)));
            assert_eq!(steps(group), [same, late, None, same, None, same]);
            let same = Some(manager);
            assert_eq!(steps(manager), [same, same, same, same, same, None]);
        }
    }

    #[test]
    fn the_manager_is_called_for_live_connections_only() {
        let [ready, refused, ending] =
            [ConnectionUpdate::Ready, ConnectionUpdate::Refused, ConnectionUpdate::Ending];
        assert_eq!(PLACING.answer(ready), Some(GroupAnswer::Accept));
        assert_eq!(PLACING.answer(refused), Some(GroupAnswer::Reject));
        assert_eq!(PLACING.answer(ending), Some(GroupAnswer::Reject));
        assert_eq!(accepted(true).answer(ending), Some(GroupAnswer::Disconnect));
        for update in [ConnectionUpdate::Connected, ConnectionUpdate::Gone] {
            assert_eq!((PLACING.answer(update), accepted(true).answer(update)), (None, None));
        }
        for awaits in [Awaited::Both, Awaited::Group, Awaited::Manager] {
            for update in [ready, refused, ending] {
                assert_eq!(closing(true, awaits).answer(update), None);
            }
        }
    }
}

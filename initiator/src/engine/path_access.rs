//! How namespaces can be reached over a controller: Asymmetric Namespace Access (Base, 8.1.1).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nvme_proto::Status;
use nvme_proto::log::{AnaGroups, AnaState};

/// The access state of a namespace at a controller. The engine of the controller writes it; whoever
/// chooses between paths reads it without a lock.
#[derive(Clone, Debug)]
pub(crate) struct PathAccess(Arc<AtomicU8>);

impl PathAccess {
    pub(crate) fn new(state: AnaState) -> Self {
        Self(Arc::new(AtomicU8::new(state.0)))
    }

    pub(crate) fn state(&self) -> AnaState {
        AnaState(self.0.load(Ordering::Relaxed))
    }

    /// Whether commands to the namespace are served.
    pub(crate) fn is_usable(&self) -> bool {
        matches!(self.state(), AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED)
    }

    /// Why commands wait for another state, if they do. Without a way back they do not: the
    /// controller refuses them.
    pub(crate) fn obstacle(&self) -> Option<Status> {
        match self.state() {
            AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED | AnaState::PERSISTENT_LOSS => None,
            AnaState::CHANGE => Some(Status::ANA_TRANSITION),
            _ => Some(Status::ANA_INACCESSIBLE),
        }
    }

    /// Notes a state; false if it is the one before.
    fn set(&self, state: AnaState) -> bool {
        self.0.swap(state.0, Ordering::Relaxed) != state.0
    }
}

/// The consequence of a state for commands that wait for a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessChange {
    /// The state is what it was.
    None,
    /// The state has changed, and as many commands are served or wait in it.
    Other,
    /// Commands no longer wait.
    Opened,
    /// Commands wait from now on.
    Closed,
}

/// The states of the ANA groups of a controller, as it told last.
#[derive(Debug, Default)]
pub(crate) struct AnaTable(BTreeMap<u32, AnaState>);

impl AnaTable {
    /// The groups of an ANA log page. More than fit are not known.
    pub(crate) fn parse(page: &[u8]) -> Self {
        let groups = AnaGroups::new(page);
        Self(groups.map(|(group, _)| (group.agid.get(), group.state.state())).collect())
    }

    /// The state of a group. One that the controller says nothing of is taken for optimized, and so
    /// is what belongs to no group (0).
    pub(crate) fn state(&self, group: u32) -> AnaState {
        self.0.get(&group).copied().unwrap_or(AnaState::OPTIMIZED)
    }

    /// A command to a namespace of the group was refused; false if the status tells nothing of
    /// paths, or the namespace belongs to no group.
    pub(crate) fn note_refusal(&mut self, group: u32, status: Status) -> bool {
        let Some(state) = state_of(status).filter(|_| group != 0) else { return false };
        self.0.insert(group, state);
        true
    }

    /// Puts a namespace of a group in the state that is known.
    pub(crate) fn apply(&self, group: u32, access: &PathAccess) -> AccessChange {
        let waited = access.obstacle().is_some();
        let is_other = access.set(self.state(group));
        match (waited, access.obstacle().is_some()) {
            (true, false) => AccessChange::Opened,
            (false, true) => AccessChange::Closed,
            _ if is_other => AccessChange::Other,
            _ => AccessChange::None,
        }
    }
}

/// The access state for which a controller refuses commands with a status, if it is one of those.
pub(crate) fn state_of(status: Status) -> Option<AnaState> {
    let states = [
        (Status::ANA_PERSISTENT_LOSS, AnaState::PERSISTENT_LOSS),
        (Status::ANA_INACCESSIBLE, AnaState::INACCESSIBLE),
        (Status::ANA_TRANSITION, AnaState::CHANGE),
    ];
    states.iter().find(|(code, _)| status.is(*code)).map(|&(_, state)| state)
}

#[cfg(test)]
mod tests {
    use nvme_proto::IntoBytes;
    use nvme_proto::log::{AnaGroup, AnaHeader};

    use super::*;

    fn page(states: &[AnaState]) -> Vec<u8> {
        let mut page = AnaHeader::new(1, states.len() as u16).as_bytes().to_vec();
        for (group, &state) in (1..).zip(states) {
            page.extend(AnaGroup::new(group, 0, state).as_bytes());
        }
        page.resize(4096, 0);
        page
    }

    #[test]
    fn states_open_and_close_a_path() {
        let access = PathAccess::new(AnaState::OPTIMIZED);
        let steps = [
            (AnaState::NON_OPTIMIZED, AccessChange::Other, true),
            (AnaState::NON_OPTIMIZED, AccessChange::None, true),
            (AnaState::CHANGE, AccessChange::Closed, false),
            (AnaState::INACCESSIBLE, AccessChange::Other, false),
            (AnaState::PERSISTENT_LOSS, AccessChange::Opened, false),
            (AnaState(9), AccessChange::Closed, false),
            (AnaState::OPTIMIZED, AccessChange::Opened, true),
        ];
        for (state, change, is_usable) in steps {
            let table = AnaTable::parse(&page(&[AnaState::OPTIMIZED, state]));
            assert_eq!(table.apply(2, &access), change, "{state}");
            assert_eq!(access.is_usable(), is_usable, "{state}");
        }
        let nothing = AnaTable::default();
        assert_eq!(nothing.apply(2, &access), AccessChange::None);
    }

    #[test]
    fn a_refusal_tells_the_state_of_a_group() {
        let mut table = AnaTable::parse(&page(&[AnaState::OPTIMIZED; 2]));
        assert!(!table.note_refusal(2, Status::NAMESPACE_NOT_READY));
        assert!(!table.note_refusal(0, Status::ANA_TRANSITION));
        assert!(table.note_refusal(2, Status::ANA_TRANSITION));
        assert_eq!([0, 1, 2, 3].map(|group| table.state(group)), {
            let well = AnaState::OPTIMIZED;
            [well, well, AnaState::CHANGE, well]
        });
    }
}

//! Access to namespaces over a controller: Asymmetric Namespace Access (Base, 8.1.1).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use nvme_proto::Status;
use nvme_proto::log::{AnaGroups, AnaState};

/// ANA state of a namespace on a controller. Written by the controller's engine, and read without a
/// lock to select paths.
#[derive(Clone, Debug)]
pub(crate) struct PathAccess(Arc<AtomicU8>);

impl PathAccess {
    pub(crate) fn new(state: AnaState) -> Self {
        Self(Arc::new(AtomicU8::new(state.0)))
    }

    pub(crate) fn state(&self) -> AnaState {
        AnaState(self.0.load(Ordering::Relaxed))
    }

    /// Returns whether commands to the namespace are executed.
    pub(crate) fn is_usable(&self) -> bool {
        matches!(self.state(), AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED)
    }

    /// Returns the status for which commands wait for another state. In ANA Persistent Loss they do
    /// not wait, since the state does not change: the controller rejects them.
    pub(crate) fn obstacle(&self) -> Option<Status> {
        match self.state() {
            AnaState::OPTIMIZED | AnaState::NON_OPTIMIZED | AnaState::PERSISTENT_LOSS => None,
            AnaState::CHANGE => Some(Status::ANA_TRANSITION),
            _ => Some(Status::ANA_INACCESSIBLE),
        }
    }

    /// Sets the state; false if it is unchanged.
    fn set(&self, state: AnaState) -> bool {
        self.0.swap(state.0, Ordering::Relaxed) != state.0
    }
}

/// Effect of a new state on commands for a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessChange {
    /// The state is unchanged.
    None,
    /// The state has changed, but not whether commands wait.
    Other,
    /// Commands that waited can be sent.
    Opened,
    /// Commands wait from now on.
    Closed,
}

/// ANA states of the groups of a controller, as last reported.
#[derive(Debug, Default)]
pub(crate) struct AnaTable(BTreeMap<u32, AnaState>);

impl AnaTable {
    /// Parses an ANA log page. Groups that do not fit the page are unknown.
    pub(crate) fn parse(page: &[u8]) -> Self {
        let groups = AnaGroups::new(page);
        Self(groups.map(|(group, _)| (group.agid.get(), group.state.state())).collect())
    }

    /// Returns the state of a group; optimized if the controller has not reported the group, and
    /// for 0, which is no group.
    pub(crate) fn state(&self, group: u32) -> AnaState {
        self.0.get(&group).copied().unwrap_or(AnaState::OPTIMIZED)
    }

    /// Records that a command to a namespace of the group was rejected; false if the status is not
    /// an ANA status, or the namespace is in no group.
    pub(crate) fn note_refusal(&mut self, group: u32, status: Status) -> bool {
        let Some(state) = state_of(status).filter(|_| group != 0) else { return false };
        self.0.insert(group, state);
        true
    }

    /// Sets the state of a namespace to that of its group.
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

/// Returns the ANA state in which a controller rejects commands with this status, if there is one.
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

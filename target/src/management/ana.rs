//! How the management interface names the states of asymmetric namespace access.

use nvme_proto::log::AnaState;
use serde::Deserialize;
use serde_json::{Value, json};

use super::rpc::RpcError;
use super::subsystem::ListenAddress;
use crate::inventory::ana::{AnaGroupId, AnaStates};
use crate::limits::ANA_GROUPS;

/// Parameters of the method `nvmf_subsystem_listener_set_ana_state`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnaParams {
    pub(super) nqn: String,
    pub(super) listen_address: ListenAddress,
    pub(super) ana_state: StateName,
    /// All groups where it is left out.
    pub(super) anagrpid: Option<u32>,
}

/// A state as SPDK writes it; it has no word for the last two.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum StateName {
    Optimized,
    NonOptimized,
    Inaccessible,
    PersistentLoss,
    Change,
}

const NAMES: [(StateName, AnaState, &str); 5] = [
    (StateName::Optimized, AnaState::OPTIMIZED, "optimized"),
    (StateName::NonOptimized, AnaState::NON_OPTIMIZED, "non_optimized"),
    (StateName::Inaccessible, AnaState::INACCESSIBLE, "inaccessible"),
    (StateName::PersistentLoss, AnaState::PERSISTENT_LOSS, "persistent_loss"),
    (StateName::Change, AnaState::CHANGE, "change"),
];

impl From<StateName> for AnaState {
    fn from(name: StateName) -> Self {
        let found = NAMES.iter().find(|(other, ..)| *other == name);
        found.map_or(Self::INACCESSIBLE, |(_, state, _)| *state)
    }
}

/// The group with a number.
pub(super) fn group(id: u32) -> Result<AnaGroupId, RpcError> {
    AnaGroupId::new(id).ok_or_else(|| {
        RpcError::invalid_params(format_args!(
            "anagrpid: {id} is not a number from 1 to {ANA_GROUPS}"
        ))
    })
}

/// The name of a group's state.
pub(super) fn state_name(states: &AnaStates, group: AnaGroupId) -> &'static str {
    let state = states.state(group);
    NAMES.iter().find(|(_, other, _)| *other == state).map_or("inaccessible", |(.., name)| *name)
}

/// The states of all groups at a listener.
pub(super) fn describe_states(states: &AnaStates) -> Value {
    let describe = |group: AnaGroupId| json!({ "ana_group": group.get(), "ana_state": state_name(states, group) });
    AnaGroupId::all().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (expected, state, name) in NAMES {
            let read: StateName = serde_json::from_value(name.into()).expect("a name");
            assert_eq!((read, AnaState::from(read)), (expected, state));
        }
    }
}

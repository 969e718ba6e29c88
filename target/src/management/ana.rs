//! ANA states as the management interface names them.

use nvme_proto::log::AnaState;
use serde_json::{Value, json};

use super::rpc::{RpcError, params};
use super::subsystem::ListenAddress;
use crate::inventory::ana::{AnaGroupId, AnaStates};
use crate::limits::ANA_GROUPS;

params! {
    /// Parameters of the method `nvmf_subsystem_listener_set_ana_state`.
    AnaParams {
        nqn: String,
        listen_address: ListenAddress,
        ana_state: String,
        /// ANA group; `None` for all groups.
        anagrpid: Option<u32>,
    }
}

/// States by their names in SPDK, which has none for the last two.
const NAMES: [(AnaState, &str); 5] = [
    (AnaState::OPTIMIZED, "optimized"),
    (AnaState::NON_OPTIMIZED, "non_optimized"),
    (AnaState::INACCESSIBLE, "inaccessible"),
    (AnaState::PERSISTENT_LOSS, "persistent_loss"),
    (AnaState::CHANGE, "change"),
];

pub(super) fn state(name: &str) -> Result<AnaState, RpcError> {
    let found = NAMES.iter().find(|(_, other)| *other == name);
    found.map(|(state, _)| *state).ok_or_else(|| {
        let names = NAMES.map(|(_, name)| name).join(", ");
        RpcError::invalid_params(format_args!("ana_state: {name:?} is not one of {names}"))
    })
}

pub(super) fn group(id: u32) -> Result<AnaGroupId, RpcError> {
    AnaGroupId::new(id).ok_or_else(|| {
        RpcError::invalid_params(format_args!(
            "anagrpid: {id} is not a number from 1 to {ANA_GROUPS}"
        ))
    })
}

pub(super) fn state_name(states: &AnaStates, group: AnaGroupId) -> &'static str {
    let state = states.state(group);
    NAMES.iter().find(|(other, _)| *other == state).map_or("inaccessible", |(_, name)| *name)
}

/// JSON array with the state of each group at a listener.
pub(super) fn describe_states(states: &AnaStates) -> Value {
    let describe = |group: AnaGroupId| json!({ "ana_group": group.get(), "ana_state": state_name(states, group) });
    AnaGroupId::all().map(describe).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for (expected, name) in NAMES {
            assert_eq!(state(name), Ok(expected));
        }
        assert!(state("best").expect_err("no state").message.contains("persistent_loss"));
    }
}

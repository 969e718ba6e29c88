//! `feedrail target ana`: shows or sets ANA states of a subsystem at an address.

use std::net::SocketAddr;

use anyhow::Result;
use clap::{Args, ValueEnum};
use nvme_proto::Nqn;
use serde_json::{Value, json};

use super::subsystem::{listener, parse_address};
use super::{RpcClient, SocketArgs, items};
use crate::options::{Format, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail target ana nqn.2026-01.org.example:shards --socket /run/feedrail/target.sock
  feedrail target ana nqn.2026-01.org.example:shards 192.0.2.7 inaccessible \\
      --socket /run/feedrail/target.sock";

/// Shows or changes the ANA states of a subsystem at an address
///
/// Hosts are notified (ANA Change event) and stop using the path once they have read the new state;
/// running commands complete normally. Listeners added later start in the state optimized.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Ana {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Address of the listener whose state is to change, IP or IP:PORT (default port 4420)
    #[arg(value_parser = parse_address, requires = "state")]
    address: Option<SocketAddr>,
    /// ANA state to set
    state: Option<AccessState>,
    /// ANA group (1 to 16) whose state changes [default: all groups]
    #[arg(long, value_name = "GROUP", requires = "state")]
    group: Option<u32>,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    socket: SocketArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AccessState {
    /// Hosts use this path
    Optimized,
    /// Hosts use this path if no optimized path is left
    NonOptimized,
    /// Hosts use other paths until the state changes
    Inaccessible,
    /// Hosts use other paths; this one is lost permanently
    PersistentLoss,
    /// Hosts wait for the next state, and treat the path as inaccessible after 10 s (ANATT)
    Change,
}

impl AccessState {
    /// Name of the state in the target's configuration.
    fn name(self) -> &'static str {
        match self {
            Self::Optimized => "optimized",
            Self::NonOptimized => "non_optimized",
            Self::Inaccessible => "inaccessible",
            Self::PersistentLoss => "persistent_loss",
            Self::Change => "change",
        }
    }
}

impl Ana {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let nqn = self.subnqn.as_str();
        if let (Some(address), Some(state)) = (self.address, self.state) {
            let mut params = listener(nqn, address);
            params["ana_state"] = state.name().into();
            if let Some(group) = self.group {
                params["anagrpid"] = group.into();
            }
            return target.call("nvmf_subsystem_listener_set_ana_state", params).map(drop);
        }
        let listeners = target.call("nvmf_subsystem_get_listeners", json!({ "nqn": nqn }))?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({ "listeners": listeners })),
            Format::Normal => {
                let rows: Vec<_> = items(&listeners).flat_map(rows).collect();
                output::table(&["Address", "Port", "Groups", "State"], &rows)
            }
        })
    }
}

/// Table rows of a listener: one for each ANA state, with the groups in that state.
fn rows(listener: &Value) -> Vec<Vec<String>> {
    let text = |value: &Value| output::printable(value.as_str().unwrap_or_default());
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    for group in items(&listener["ana_states"]) {
        let (state, id) = (text(&group["ana_state"]), group["ana_group"].to_string());
        match rows.iter_mut().find(|(other, _)| *other == state) {
            Some((_, ids)) => ids.push(id),
            None => rows.push((state, vec![id])),
        }
    }
    let address = &listener["address"];
    let row = |(state, ids): (String, Vec<String>)| {
        vec![text(&address["traddr"]), text(&address["trsvcid"]), ids.join(","), state]
    };
    rows.into_iter().map(row).collect()
}

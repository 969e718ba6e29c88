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

/// Shows or changes how namespaces can be reached at an address (ANA)
///
/// Hosts with another path stop using this one within the time that they take to read the new
/// state; commands that have begun end as they would have. Listeners that are added later begin
/// with the state optimized.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Ana {
    /// Name of the subsystem
    subnqn: Nqn,
    /// Address of the listener whose state is to change, IP or IP:PORT (default port 4420)
    #[arg(value_parser = parse_address, requires = "state")]
    address: Option<SocketAddr>,
    /// ANA state that hosts are told
    state: Option<AccessState>,
    /// Only the namespaces of one ANA group, 1 to 16
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
    /// Hosts use this path where no optimized one is there
    NonOptimized,
    /// Hosts use other paths; this one will come back
    Inaccessible,
    /// Hosts use other paths; this one will not come back
    PersistentLoss,
    /// Hosts wait; inaccessible after 10 s
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

//! `feedrail target reauth`: requires connected hosts to authenticate again.

use anyhow::Result;
use clap::Args;
use nvme_proto::Nqn;
use serde_json::json;

use super::{RpcClient, SocketArgs};
use crate::options::{Format, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail target reauth nqn.2026-01.org.example:shards
  feedrail target reauth nqn.2026-01.org.example:shards nqn.2026-01.org.example:node-7 --within 300";

/// Requires connected hosts to authenticate again, after a key was changed
///
/// Prints the number of controllers. Queues that have not authenticated again in time are closed;
/// their hosts connect again with the new key. No NVMe command asks a host to authenticate again,
/// so this closes the queues of hosts that do not do it by themselves.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Reauth {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// NQN of the host [default: all hosts with a key]
    hostnqn: Option<Nqn>,
    /// Time in seconds that hosts have
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    within: u32,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    socket: SocketArgs,
}

impl Reauth {
    pub(super) fn run(&self) -> Result<()> {
        let mut params = json!({ "nqn": self.subnqn.as_str(), "within_s": self.within });
        if let Some(host) = self.hostnqn {
            params["host"] = host.as_str().into();
        }
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let controllers = target.call("feedrail_reauthenticate", params)?;
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({ "controllers": controllers })),
            Format::Normal => format!("{controllers}\n"),
        })
    }
}

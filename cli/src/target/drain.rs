//! `feedrail target drain`: moves hosts to other paths before maintenance of a target or a link.

use core::time::Duration;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use clap::Args;
use nvme_proto::Nqn;
use serde_json::{Value, json};

use super::subsystem::{parse_address, transport_address};
use super::{RpcClient, SocketArgs, items};
use crate::interrupt::Interrupt;
use crate::options::{Format, Output};
use crate::{clock, output};

const EXAMPLES: &str = "\
Examples:
  feedrail target drain --socket /run/feedrail/target.sock && systemctl stop feedrail-target
  feedrail target drain --listen 192.0.2.7 --socket /run/feedrail/target.sock
  feedrail target drain --listen 192.0.2.7 --undo --socket /run/feedrail/target.sock";

/// Moves hosts to other paths: sets the ANA state inaccessible, and waits for running commands
///
/// Drains all addresses of the target, or those of --listen. Running commands complete normally;
/// later ones fail with Asymmetric Access Inaccessible. Hosts without another path wait, and
/// continue after --undo, which restores the previous states. Prints the hosts that are still
/// connected; they stay connected until the target stops.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Drain {
    /// NQN of the subsystem to drain [default: all]
    subnqn: Option<Nqn>,
    /// Address to drain, IP or IP:PORT (default port 4420) [default: all]
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Restore the ANA states from before the drain
    #[arg(long, conflicts_with = "timeout")]
    undo: bool,
    /// Time in seconds to wait for running commands
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    socket: SocketArgs,
}

impl Drain {
    pub(super) fn run(&self) -> Result<()> {
        let interrupt = Interrupt::install()?;
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let mut params = json!({ "undo": self.undo });
        if let Some(nqn) = self.subnqn {
            params["nqn"] = nqn.as_str().into();
        }
        if let Some(address) = self.listen {
            params["listen_address"] = transport_address(address);
        }
        let began = clock::now();
        while target.call("feedrail_drain", params.clone())? != true {
            interrupt.check()?;
            ensure!(
                began.elapsed() < Duration::from_secs(self.timeout),
                "commands of hosts are still in flight after {} s: see `feedrail target top`; --undo restores the addresses",
                self.timeout
            );
        }
        if self.undo {
            return Ok(());
        }
        self.print(&mut target)
    }

    fn print(&self, target: &mut RpcClient) -> Result<()> {
        let params = self.subnqn.map_or_else(|| json!({}), |nqn| json!({ "nqn": nqn.as_str() }));
        let subsystems = target.call("nvmf_get_subsystems", params)?;
        let mut hosts = Vec::new();
        for nqn in items(&subsystems).filter_map(|subsystem| subsystem["nqn"].as_str()) {
            let params = json!({ "nqn": nqn });
            let controllers = target.call("nvmf_subsystem_get_controllers", params)?;
            hosts.extend(items(&controllers).map(|controller| {
                json!({
                    "subnqn": nqn, "hostnqn": controller["hostnqn"], "peer": controller["peer"],
                })
            }));
        }
        let text = |host: &Value, key: &str| output::printable(host[key].as_str().unwrap_or(""));
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({ "connected": hosts })),
            Format::Normal if hosts.is_empty() => "no host is connected\n".to_owned(),
            Format::Normal => {
                let keys = ["subnqn", "hostnqn", "peer"];
                let row = |host| keys.iter().map(|key| text(host, key)).collect();
                let rows: Vec<Vec<String>> = hosts.iter().map(row).collect();
                output::table(&["Subsystem", "Connected host", "Peer"], &rows)
            }
        })
    }
}

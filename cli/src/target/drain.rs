//! `feedrail target drain`: has hosts use other paths, before a target or a link is worked on.

use core::time::Duration;
use std::net::SocketAddr;

use anyhow::{Result, ensure};
use clap::Args;
use nvme_proto::Nqn;
use serde_json::{Value, json};

use super::subsystem::parse_address;
use super::{RpcClient, SocketArgs, items};
use crate::args::{Format, Output};
use crate::clock;
use crate::interrupt::Interrupt;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail target drain --socket /run/feedrail/target.sock && systemctl stop feedrail-target
  feedrail target drain --listen 192.0.2.7 --socket /run/feedrail/target.sock
  feedrail target drain --listen 192.0.2.7 --undo --socket /run/feedrail/target.sock";

/// Has hosts use other paths: makes addresses inaccessible (ANA), and waits until no command comes
///
/// Without --listen at all addresses of the target. Commands that have begun end as they would
/// have. Hosts that have no other path wait, and go on after --undo, which makes the addresses
/// optimized. Prints the hosts that are connected still; they stay so until the target stops.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Drain {
    /// Only where this subsystem is served
    subnqn: Option<Nqn>,
    /// Only this address, IP or IP:PORT (default port 4420)
    #[arg(long, value_name = "ADDRESS", value_parser = parse_address)]
    listen: Option<SocketAddr>,
    /// Have hosts use the addresses again
    #[arg(long, conflicts_with = "timeout")]
    undo: bool,
    /// How long hosts may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    socket: SocketArgs,
}

/// How often commands are counted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// For how long no command may have ended. Hosts that read the new state late, and those that
/// Linux has wait for 200 ms and more, are heard of by then.
const QUIET: Duration = Duration::from_secs(1);

impl Drain {
    pub(super) fn run(&self) -> Result<()> {
        let interrupt = Interrupt::install()?;
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let subsystems = self.subsystems(&mut target)?;
        let state = if self.undo { "optimized" } else { "inaccessible" };
        let mut changed = 0;
        for subsystem in items(&subsystems) {
            for address in items(&subsystem["listen_addresses"]).filter(|it| self.is_meant(it)) {
                let params = json!({
                    "nqn": subsystem["nqn"], "listen_address": address, "ana_state": state,
                });
                target.call("nvmf_subsystem_listener_set_ana_state", params)?;
                changed += 1;
            }
        }
        ensure!(changed > 0, "no such subsystem is served at such an address: see target show");
        if self.undo {
            return Ok(());
        }
        self.wait_for_quiet(&mut target, &interrupt)?;
        self.print(&mut target, &subsystems)
    }

    fn subsystems(&self, target: &mut RpcClient) -> Result<Value> {
        let params = self.subnqn.map_or_else(|| json!({}), |nqn| json!({ "nqn": nqn.as_str() }));
        target.call("nvmf_get_subsystems", params)
    }

    fn is_meant(&self, address: &Value) -> bool {
        let Some(wanted) = self.listen else { return true };
        address["traddr"].as_str() == Some(&wanted.ip().to_string())
            && address["trsvcid"].as_str() == Some(&wanted.port().to_string())
    }

    /// Waits until no command has ended for a while. Commands are counted for the whole target: of
    /// a subsystem or an address, hosts get that while, and no more is known.
    fn wait_for_quiet(&self, target: &mut RpcClient, interrupt: &Interrupt) -> Result<()> {
        if self.listen.is_some() || self.subnqn.is_some() {
            clock::sleep(QUIET);
            return Ok(());
        }
        let began = clock::now();
        let (mut last, mut since) = (completed(target)?, began);
        while since.elapsed() < QUIET {
            interrupt.check()?;
            ensure!(
                began.elapsed() < Duration::from_secs(self.timeout),
                "hosts still use the target after {} s: see target top; --undo takes this back",
                self.timeout
            );
            clock::sleep(LOOK_EVERY);
            let now = completed(target)?;
            if now != last {
                (last, since) = (now, clock::now());
            }
        }
        Ok(())
    }

    fn print(&self, target: &mut RpcClient, subsystems: &Value) -> Result<()> {
        let mut hosts = Vec::new();
        for nqn in items(subsystems).filter_map(|subsystem| subsystem["nqn"].as_str()) {
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

/// I/O commands that have ended since the target started.
fn completed(target: &mut RpcClient) -> Result<u64> {
    let stats = target.call("nvmf_get_stats", json!({}))?;
    let groups = items(&stats["poll_groups"]);
    Ok(groups.filter_map(|group| group["completed_nvme_io"].as_u64()).sum())
}

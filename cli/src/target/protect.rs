//! `feedrail target protect`: sets or clears the write protection of a namespace.

use anyhow::Result;
use clap::Args;
use nvme_proto::Nqn;
use serde_json::json;

use super::{RpcClient, SocketArgs};

const EXAMPLES: &str = "\
Examples:
  feedrail target protect nqn.2026-01.org.example:scratch 1 --socket /run/feedrail/target.sock
  feedrail target protect nqn.2026-01.org.example:scratch 1 --undo --socket /run/feedrail/target.sock";

/// Write-protects a namespace until --undo, also across restarts
///
/// Hosts are notified, and writes fail with Namespace is Write Protected; running writes complete
/// normally. A host can set and clear the same state (nvme set-feature -f 0x84).
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ProtectNamespace {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Namespace ID (NSID) in the subsystem
    nsid: u32,
    /// Remove the write protection
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    socket: SocketArgs,
}

impl ProtectNamespace {
    pub(super) fn run(&self) -> Result<()> {
        let nqn = self.subnqn.as_str();
        let params = json!({ "nqn": nqn, "nsid": self.nsid, "protected": !self.undo });
        let mut target = RpcClient::connect(&self.socket.socket)?;
        target.call("feedrail_protect_ns", params).map(drop)
    }
}

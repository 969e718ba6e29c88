//! `feedrail target rename`: changes the name of a namespace.

use anyhow::Result;
use clap::Args;
use nvme_proto::Nqn;
use serde_json::json;

use super::{RpcClient, SocketArgs};

const EXAMPLES: &str = "\
Examples:
  feedrail target rename nqn.2026-01.org.example:imagenet 3 shard-03.tar --socket /run/feedrail/target.sock";

/// Renames a namespace; Feedrail's hosts find it by the new name
///
/// Hosts are notified (Attached Namespace Attribute Notice). The file keeps its name, and the
/// namespace its UUID.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Rename {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Namespace ID (NSID) in the subsystem
    nsid: u32,
    /// New name, at most 1024 bytes
    name: String,
    #[command(flatten)]
    socket: SocketArgs,
}

impl Rename {
    pub(super) fn run(&self) -> Result<()> {
        let nqn = self.subnqn.as_str();
        let params = json!({ "nqn": nqn, "nsid": self.nsid, "name": self.name });
        RpcClient::connect(&self.socket.socket)?.call("feedrail_rename_ns", params).map(drop)
    }
}

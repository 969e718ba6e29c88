//! `feedrail target resize`: sets the size of a namespace to that of its file or device.

use anyhow::Result;
use clap::Args;
use nvme_proto::Nqn;
use serde_json::json;

use super::{RpcClient, SocketArgs};
use crate::output;
use crate::size::ByteSize;

const EXAMPLES: &str = "\
Examples:
  truncate -s 2T /srv/disks/scratch.img
  feedrail target resize nqn.2026-01.org.example:scratch 1 --socket /run/feedrail/target.sock";

/// Gives a namespace the size that its file or device has now, and prints it in bytes
///
/// Hosts are told, and can use added blocks immediately. Before a file or device is made smaller,
/// what is behind its new end should not be in use: commands for that fail.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Resize {
    /// Name of the subsystem
    subnqn: Nqn,
    /// Id of the namespace
    nsid: u32,
    /// The size, for a namespace that reads zeros (null) and has neither file nor device
    #[arg(long)]
    size: Option<ByteSize>,
    #[command(flatten)]
    socket: SocketArgs,
}

impl Resize {
    pub(super) fn run(&self) -> Result<()> {
        let mut params = json!({ "nqn": self.subnqn.as_str(), "nsid": self.nsid });
        if let Some(ByteSize(bytes)) = self.size {
            params["size_bytes"] = bytes.into();
        }
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let bytes = target.call("feedrail_resize_ns", params)?;
        output::print(&format!("{bytes}\n"))
    }
}

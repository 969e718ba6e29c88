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

/// Sets the size of a namespace to that of its file or device, and prints it in bytes
///
/// Hosts are notified and can use added blocks immediately. After a file or device has shrunk,
/// commands beyond its new end fail.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Resize {
    /// NQN of the subsystem
    subnqn: Nqn,
    /// Namespace ID (NSID) in the subsystem
    nsid: u32,
    /// New size of a null namespace, which has neither file nor device
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

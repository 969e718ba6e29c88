//! `feedrail target trace`: records the times at which a target's commands reached their stages.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::{RpcClient, SocketArgs};
use crate::command_trace::{CommandAtTarget, PerfettoTrace};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail target trace --time 2 --file target.json --socket /run/feedrail/target.sock
  feedrail perf -a 192.0.2.10 -n NQN --trace host.json
  feedrail merge-traces host.json target.json --file both.json";

/// Records the times of the stages of each I/O command, for Perfetto (ui.perfetto.dev)
///
/// The stages of a command are the wait for a buffer, the fetch of its data from the host (RDMA
/// READ), and storage. A trace that a host recorded at the same time can be merged: see
/// merge-traces.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct TraceCommands {
    /// Duration of the trace in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=60))]
    time: u64,
    /// Maximum number of commands, after which the trace ends
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    limit: u32,
    /// Output file; - is standard output
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    #[command(flatten)]
    socket: SocketArgs,
}

/// Result of the target's trace method.
#[derive(Deserialize)]
struct TraceAnswer {
    commands: Vec<CommandAtTarget>,
    dropped: u64,
}

impl TraceCommands {
    pub(super) fn run(&self) -> Result<()> {
        let mut target = RpcClient::connect(&self.socket.socket)?;
        let params = json!({ "time_ms": self.time * 1000, "limit": self.limit });
        let answer = target.call("feedrail_trace_commands", params)?;
        let answer: TraceAnswer =
            serde_json::from_value(answer).context("the target answered with no trace")?;
        let TraceAnswer { commands, dropped } = answer;
        output::note(format_args!("feedrail: {} commands, {dropped} more", commands.len()));
        PerfettoTrace { target: commands, ..PerfettoTrace::default() }.write(&self.file)
    }
}

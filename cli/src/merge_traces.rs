//! `feedrail merge-traces`: combines the commands that a host recorded with those of the target.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use crate::command_trace::PerfettoTrace;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail merge-traces host.json target.json --file both.json";

/// Merges traces of a host and of a target, so that Perfetto shows each command on both sides
///
/// Commands are matched by their controller (CNTLID), queue (QID), command identifier (CID) and
/// contents. The clock offset between the machines is computed from the commands: none arrives
/// before it was sent, or completes after the host has received the response.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct MergeTraces {
    /// Files of feedrail perf --trace and of feedrail target trace
    #[arg(required = true, value_name = "FILE")]
    traces: Vec<PathBuf>,
    /// Output file; - is standard output
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
}

impl MergeTraces {
    pub(crate) fn run(&self) -> Result<()> {
        let mut merged = PerfettoTrace::default();
        for path in &self.traces {
            let PerfettoTrace { host, target } = PerfettoTrace::read(path)?;
            merged.host.extend(host);
            merged.target.extend(target);
        }
        let (both, ahead_ns) = merged.matches();
        output::note(format_args!(
            "feedrail: {} commands of hosts, {} of targets, {both} of them the same; the clock of the targets is {} us ahead",
            merged.host.len(),
            merged.target.len(),
            ahead_ns as f64 / 1e3
        ));
        merged.write(&self.file)
    }
}

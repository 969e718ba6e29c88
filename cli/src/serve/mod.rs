//! `feedrail serve`: a target in the foreground, and how to read from it.

mod companion;
mod directions;

use std::ffi::OsString;
use std::io::{IsTerminal as _, stdout};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use nvme_proto::Nqn;
use rustix::process::Pid;

use self::companion::{end_with, parse_pid};
use self::directions::Directions;
use crate::interrupt::Interrupt;
use crate::options::{Format, ProviderArg};
use crate::output;
use crate::target_child::{TargetChild, run_daemon};

/// Port of the counters in the examples of the documentation.
const METRICS_PORT: u16 = 9420;

const EXAMPLES: &str = "\
Examples:
  feedrail serve train.bin val.bin
  feedrail serve /data/shards --listen 192.0.2.10
  feedrail serve scratch.img --writable --listen 127.0.0.1
  feedrail serve /data/shards -o json | jq -r 'select(.event == \"listening\") | .nqn'";

/// Serves files and directories until Ctrl-C, and prints the commands that read them
///
/// Runs a target in the foreground, without a configuration file. Each file is a namespace, and so
/// is each file in a directory and its subdirectories, including files that appear later. Any host
/// that reaches the machine may read: name an address with --listen to serve one network only.
/// feedrail-target is the daemon for what stays: it restricts hosts, and starts with the machine.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// Files, block devices and directories to serve
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,
    /// Address to listen on, IP or IP:PORT (default port 4420); may be given several times
    #[arg(short, long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    listen: Vec<String>,
    /// Allow hosts to write; the size of each file must then be a multiple of the block size
    #[arg(short, long)]
    writable: bool,
    /// NQN of the subsystem [default: derived from the machine ID and the addresses]
    #[arg(short = 'n', long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// Number of poll groups (threads that serve hosts)
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    cores: u8,
    /// RDMA provider of the target
    #[arg(long, value_enum, default_value_t = ProviderArg::Auto)]
    provider: ProviderArg,
    /// Address of the status page and of the Prometheus metrics [default: 127.0.0.1:9420, or
    /// another port if that is in use]
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    /// Stop when the process with this PID ends, as `tail --pid` does
    #[arg(long, value_name = "PID", value_parser = parse_pid)]
    pid: Option<Pid>,
    /// Format of the output: json prints the lines of feedrail-target [default: normal in a
    /// terminal, else json]
    #[arg(short = 'o', long, value_enum)]
    output_format: Option<Format>,
}

impl Serve {
    /// Whether the lines of the daemon are the output.
    pub(crate) fn prints_json(&self) -> bool {
        match self.output_format {
            Some(format) => format == Format::Json,
            None => !stdout().is_terminal(),
        }
    }

    /// Becomes a target daemon.
    pub(crate) fn run_as_daemon(&self, verbose: u8) -> Result<ExitCode> {
        self.pid.map_or(Ok(()), end_with)?;
        let log = (verbose > 0).then_some(["--log", "debug"].map(OsString::from));
        Ok(run_daemon(self.arguments().chain(log.into_iter().flatten())))
    }

    pub(crate) fn run(&self, verbose: u8) -> Result<()> {
        let interrupt = Interrupt::install()?;
        self.pid.map_or(Ok(()), end_with)?;
        let mut target = TargetChild::start(self.arguments(), verbose, &interrupt)?;
        output::print(&Directions::new(&target, self.writable).to_text())?;
        target.wait_for(&interrupt)?;
        output::note("stopping: commands in flight have 10 s to end; Ctrl-C again ends them");
        target.stop()
    }

    /// Options and paths in the quick form of feedrail-target.
    fn arguments(&self) -> impl Iterator<Item = OsString> {
        let mut words: Vec<OsString> = Vec::new();
        for address in &self.listen {
            words.extend(["--listen", address].map(OsString::from));
        }
        if let Some(nqn) = &self.nqn {
            words.extend(["--nqn", nqn.as_str()].map(OsString::from));
        }
        words.extend(["--provider", self.provider.name()].map(OsString::from));
        words.extend(["--cores", &self.cores.to_string()].map(OsString::from));
        let metrics = self.metrics.unwrap_or_else(free_metrics_address);
        words.extend(["--metrics", &metrics.to_string()].map(OsString::from));
        words.extend(self.writable.then(|| OsString::from("--writable")));
        words.push("--".into());
        words.extend(self.paths.iter().map(|path| path.clone().into_os_string()));
        words.into_iter()
    }
}

/// The usual address of the status page, or one with a port that the system chooses.
fn free_metrics_address() -> SocketAddr {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, METRICS_PORT));
    let is_free = TcpListener::bind(usual).is_ok();
    if is_free { usual } else { (Ipv4Addr::LOCALHOST, 0).into() }
}

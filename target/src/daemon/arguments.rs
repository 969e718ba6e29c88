//! Command line of `feedrail-target`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser;
use nvme_proto::Nqn;

use super::log_filter::LogFilter;
use super::log_format::LogFormatArg;
use crate::config::{
    Config, ConfigError, ConfinementMode, Cores, DirectIo, MetricsDetail, ProviderChoice, Quick,
    parse_address, parse_machine, parse_nqn,
};
use crate::derived_ids::Machine;
use crate::limits::MAX_CORES;

/// Exports files and block devices as NVMe namespaces over RDMA (RoCE v2).
///
/// Reads a configuration file, or takes the quick form: each PATH is a namespace, numbered from 1,
/// of one subsystem that any host may connect to. A directory has one namespace for each file in it
/// and in its subdirectories.
///
/// Standard output has JSON lines: "listening" for each address and subsystem, "not_listening" for
/// each address that cannot be listened on (an error only if there is no other), then "ready", and
/// "stats" on SIGUSR1 and at the end. On SIGTERM and SIGINT, running commands complete, then the
/// process exits with status 0.
#[derive(Clone, Debug, Parser)]
#[command(name = "feedrail-target", version, after_help = EXAMPLES)]
pub(super) struct DaemonArguments {
    /// Configuration file in TOML, instead of the quick form
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["paths", "listen", "writable", "direct_io", "nqn", "cores"])]
    config: Option<PathBuf>,

    /// Quick form: address to listen on, IP or IP:PORT (default port 4420), 0.0.0.0 or [::] for
    /// all; may be given several times
    #[arg(short, long, value_name = "ADDRESS", value_parser = parse_address)]
    listen: Vec<SocketAddr>,

    /// Quick form: allow hosts to write; the size of each file must then be a multiple of the block
    /// size
    #[arg(short, long)]
    writable: bool,

    /// Quick form: whether I/O on files bypasses the page cache
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    direct_io: DirectIo,

    /// Quick form: NQN of the subsystem [default: derived from the machine ID and the addresses]
    #[arg(long, value_name = "NQN", value_parser = parse_nqn)]
    nqn: Option<Nqn>,

    /// Quick form: number of poll groups (threads that serve hosts)
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_CORES)))]
    cores: u16,

    /// RDMA provider; overrides the configuration
    #[arg(long, value_enum)]
    provider: Option<ProviderChoice>,

    /// Machine ID to use instead of /etc/machine-id: 32 hexadecimal digits
    #[arg(long, value_name = "ID", env = "FEEDRAIL_MACHINE_ID", value_parser = parse_machine)]
    machine_id: Option<Machine>,

    /// Management socket (JSON-RPC 2.0) for changes at run time; overrides the configuration
    #[arg(long, value_name = "PATH")]
    management: Option<PathBuf>,

    /// Second management socket, whose clients can change nothing; overrides the configuration
    #[arg(long, value_name = "PATH")]
    management_read_only: Option<PathBuf>,

    /// Whether the daemon gives up what it does not need once it serves: off, warn (the kernel logs
    /// system calls that it would refuse) or on (a refused call ends the process); as far as the
    /// kernel can when left out; overrides the configuration
    #[arg(long, value_name = "MODE", value_enum)]
    confinement: Option<ConfinementMode>,

    /// Address (IP:PORT) of the HTTP server for Prometheus metrics (/metrics) and the status page
    /// (/); overrides the configuration
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,

    /// Level of the latency histograms in the metrics; overrides the configuration
    #[arg(long, value_name = "WHAT", value_enum)]
    metrics_detail: Option<MetricsDetail>,

    /// Do not send responses by Send with Invalidate, even if the RDMA device supports it; hosts
    /// then invalidate their memory keys themselves
    #[arg(long)]
    no_send_with_invalidate: bool,

    /// Check whether every export can be opened and every address can be used, then exit without
    /// serving
    #[arg(long)]
    pub(super) check: bool,

    /// Log filter for standard error: error, warn, info, debug, trace or off; MODULE=LEVEL for one
    /// module; several are separated by commas
    #[arg(long, value_name = "FILTER", env = "RUST_LOG", default_value = "info")]
    pub(super) log: LogFilter,

    /// Format of the log on standard error
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = LogFormatArg::Auto)]
    pub(super) log_format: LogFormatArg,

    /// Time in seconds for running commands to complete after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(0..=3600))]
    drain_seconds: u64,

    /// Quick form: files, block devices or directories to export
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
}

const EXAMPLES: &str = "Examples:
  feedrail-target --listen 127.0.0.1:4420 shard-00.tar shard-01.tar
  feedrail-target --listen 192.0.2.10 /data/shards
  feedrail-target --listen 127.0.0.1 --writable scratch.img
  feedrail-target --config /etc/feedrail/target.toml --check";

impl DaemonArguments {
    /// Returns the configuration: that of the file or of the quick form, with the overriding
    /// options.
    pub(super) fn config(&self) -> Result<Config, ConfigError> {
        let mut config = match &self.config {
            Some(path) => Config::from_file(path, self.machine_id)?,
            None => Config::quick(self.quick())?,
        };
        if let Some(provider) = self.provider {
            config.provider = provider;
        }
        if let Some(path) = &self.management {
            config.management = Some(path.clone());
        }
        if let Some(path) = &self.management_read_only {
            config.management_read_only = Some(path.clone());
        }
        config.confinement = self.confinement.or(config.confinement);
        config.metrics = self.metrics.or(config.metrics);
        config.metrics_detail = self.metrics_detail.unwrap_or(config.metrics_detail);
        config.send_with_invalidate &= !self.no_send_with_invalidate;
        Ok(config)
    }

    /// Path of the configuration file; `None` for the quick form.
    pub(super) fn config_path(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn quick(&self) -> Quick {
        Quick {
            listen: self.listen.clone(),
            paths: self.paths.clone(),
            writable: self.writable,
            direct_io: self.direct_io,
            nqn: self.nqn,
            machine: self.machine_id,
            provider: self.provider.unwrap_or_default(),
            cores: Cores::Count(self.cores),
        }
    }

    pub(super) fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain_seconds)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        DaemonArguments::command().debug_assert();
    }

    #[test]
    fn send_with_invalidate_is_used_unless_switched_off() {
        for (options, expected) in [(&[][..], true), (&["--no-send-with-invalidate"], false)] {
            let words = ["t", "--listen", "127.0.0.1", "a.bin"].iter().chain(options);
            let arguments = DaemonArguments::try_parse_from(words).expect("valid");
            let config = arguments.config().expect("valid");
            assert_eq!(config.send_with_invalidate, expected, "{options:?}");
        }
    }

    #[test]
    fn direct_io_is_chosen_for_each_file() {
        for (options, expected) in [
            (&[][..], DirectIo::Auto),
            (&["--direct-io", "always"], DirectIo::Always),
            (&["--direct-io", "never"], DirectIo::Never),
        ] {
            let words = ["t", "--listen", "127.0.0.1", "a.bin", "b.bin"].iter().chain(options);
            let arguments = DaemonArguments::try_parse_from(words).expect("valid");
            let config = arguments.config().expect("valid");
            let chosen =
                config.subsystems[0].namespaces.iter().map(|namespace| namespace.direct_io);
            assert_eq!(chosen.collect::<Vec<_>>(), [expected; 2], "{options:?}");
        }
    }

    #[test]
    fn a_configuration_excludes_the_quick_form() {
        let parsed = DaemonArguments::try_parse_from(["t", "--config", "a.toml", "b.bin"]);
        assert_eq!(parsed.expect_err("both").kind(), clap::error::ErrorKind::ArgumentConflict);
    }
}

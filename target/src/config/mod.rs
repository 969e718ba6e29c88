//! Configuration: exported media, allowed hosts, addresses and resources.
//!
//! A [`Config`] comes from a TOML file ([`Config::from_file`]) or from the command line
//! ([`Config::quick`]), and is valid by construction as far as that can be checked without opening
//! its files. Directories are expanded and files opened when the target starts, or by `--check`.

mod authentication;
mod document;
mod error;
mod export_roots;
pub(crate) mod identifiers;
mod namespace_spec;
mod qos_limits;
mod quick;
mod subsystem_spec;
mod toml_model;
mod units;
pub(crate) mod values;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use feedrail_auth::HostEntry;
use nvme_proto::Nqn;
use rdma::shm::SharingGroup;
use uuid::Uuid;

pub use self::authentication::Authentication;
pub use self::error::ConfigError;
pub(crate) use self::export_roots::ExportRoots;
pub(crate) use self::namespace_spec::NamespaceSpec;
pub use self::namespace_spec::{NamespaceConfig, NamespaceSettings};
pub use self::qos_limits::{QosLimits, QosOverride};
pub use self::quick::Quick;
pub(crate) use self::quick::{parse_address, parse_host, parse_machine, parse_nqn};
pub use self::subsystem_spec::SubsystemConfig;
pub(crate) use self::subsystem_spec::SubsystemSpec;
pub use self::values::{
    BlockShift, ContentId, Description, Eui64, IosPerSecond, MbytesPerSecond, NamespaceName,
};

use self::toml_model::FaultsTable;
use crate::backend::{BackendError, FilePlace};
pub use crate::confinement::ConfinementMode;
pub use crate::derived_ids::{Machine, MachineError, SubsystemIdentity};
pub use crate::inventory::ana::AnaGroupId;
pub use crate::limits::{CntlidRange, Limits};

/// Checked configuration, from a TOML file or from the quick form of the command line.
#[derive(Clone, Debug)]
pub struct Config {
    /// RDMA provider to use.
    pub provider: ProviderChoice,
    /// Whether responses invalidate the host's memory key with Send with Invalidate, on RDMA
    /// devices that support it.
    pub send_with_invalidate: bool,
    /// Group whose users may connect over shared memory, besides the target's own user and root.
    pub shared_memory_group: Option<SharingGroup>,
    /// Cores that the poll groups run on.
    pub cores: Cores,
    /// Longest time that an idle poll group polls before it sleeps.
    pub polling: Duration,
    /// State folder, for what is kept across restarts: NSIDs of directories' files, write
    /// protections, and the machine's id if the system has none.
    pub state_dir: PathBuf,
    /// Unique NQN of the discovery service, in addition to the well-known one.
    pub discovery_nqn: Nqn,
    /// Hosts that have to authenticate to the discovery service.
    pub discovery: Discovery,
    /// Path of the management socket (JSON-RPC), which can change the exports at run time; `None`
    /// for no socket.
    pub management: Option<PathBuf>,
    /// Path of a second management socket, whose clients can change nothing; `None` for none.
    pub management_read_only: Option<PathBuf>,
    /// Folders whose files and devices may be exported at run time, besides those that the
    /// configuration names; `None` if anything may be.
    pub export_roots: Option<Vec<PathBuf>>,
    /// Whether the daemon confines itself; `None` is as far as the kernel can.
    pub confinement: Option<ConfinementMode>,
    /// Address at which the metrics page is served over HTTP; `None` for no page.
    pub metrics: Option<SocketAddr>,
    /// Detail of the latency histograms on the metrics page.
    pub metrics_detail: MetricsDetail,
    /// Identity of the machine, from which names and ids are derived that are not configured.
    pub machine: Machine,
    /// Limits of memory, queues and controllers.
    pub limits: Limits,
    /// Ports to listen on, at least one.
    pub ports: Vec<PortConfig>,
    /// Subsystems to export, at least one.
    pub subsystems: Vec<SubsystemConfig>,
}

impl Config {
    /// Whether the exports can change at run time, through the management socket or a watched
    /// directory.
    pub(crate) fn is_managed(&self) -> bool {
        self.management.is_some() || self.watched().next().is_some()
    }

    /// Directories whose files are added and removed as namespaces at run time.
    pub(crate) fn watched(&self) -> impl Iterator<Item = &DirectoryConfig> {
        let directories = self.subsystems.iter().flat_map(|subsystem| &subsystem.directories);
        directories.filter(|directory| directory.watch)
    }

    /// Keys that differ in `new` and are read at the start only, so that a reload cannot apply
    /// them.
    pub(crate) fn differences_at_start(&self, new: &Self) -> Vec<&'static str> {
        let Self {
            provider,
            send_with_invalidate,
            shared_memory_group,
            cores,
            polling,
            state_dir,
            discovery_nqn,
            management,
            management_read_only,
            export_roots,
            confinement,
            metrics,
            metrics_detail,
            machine,
            limits,
            // Can change at run time.
            ports: _,
            subsystems: _,
            discovery: _,
        } = self;
        let keys = [
            ("provider", *provider == new.provider),
            ("send_with_invalidate", *send_with_invalidate == new.send_with_invalidate),
            ("shared_memory_group", *shared_memory_group == new.shared_memory_group),
            ("cores", *cores == new.cores),
            ("polling_us", *polling == new.polling),
            ("state_dir", *state_dir == new.state_dir),
            ("discovery_nqn", *discovery_nqn == new.discovery_nqn),
            ("management", *management == new.management),
            ("management_read_only", *management_read_only == new.management_read_only),
            ("export_roots", *export_roots == new.export_roots),
            ("confinement", *confinement == new.confinement),
            ("metrics", *metrics == new.metrics),
            ("metrics_detail", *metrics_detail == new.metrics_detail),
            ("the id of this machine", *machine == new.machine),
            ("limits", *limits == new.limits),
        ];
        keys.iter().filter(|(_, same)| !same).map(|(key, _)| *key).collect()
    }
}

/// RDMA provider to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProviderChoice {
    /// Verbs if a usable device routes to the address, else soft; and shared memory in addition.
    #[default]
    Auto,
    /// libibverbs: RDMA NICs and `rdma_rxe`.
    Verbs,
    /// RoCE v2 in userspace over UDP.
    Soft,
    /// Shared memory, with hosts on this machine that run as the same user, as root, or in
    /// [`Config::shared_memory_group`].
    Shm,
}

impl fmt::Display for ProviderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Soft => "soft",
            Self::Shm => "shm",
        })
    }
}

/// Detail of the latency histograms on the metrics page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MetricsDetail {
    /// Histograms of latencies by subsystem.
    #[default]
    Subsystem,
    /// Histograms by namespace as well: 100 samples for each used one.
    Namespace,
}

/// Use of direct I/O for files and block devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum DirectIo {
    /// All I/O bypasses the page cache as with `Always`, except reads of read-only files that fit
    /// the memory.
    #[default]
    Auto,
    /// All I/O bypasses the page cache if the file system supports that.
    Always,
    /// All I/O goes through the page cache.
    Never,
}

impl DirectIo {
    /// Value of the key `direct_io` in a configuration file.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        }
    }
}

/// Cores that the poll groups run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// Number of poll groups, which the scheduler may move between cores.
    Count(u16),
    /// Core of each poll group, which is pinned to it.
    Pinned(Vec<u16>),
}

impl Cores {
    /// Number of poll groups.
    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => usize::from(*count),
            Self::Pinned(list) => list.len(),
        }
    }
}

/// Configuration of a port: an address to listen on, and the subsystems that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// Port ID (PORTID) in the discovery log, unique in the configuration.
    pub id: u16,
    /// Address to listen on; port number 0 picks a free one. A wildcard (0.0.0.0 or ::) stands for
    /// all present and future addresses of its family on this machine.
    pub address: SocketAddr,
    /// NQNs of the subsystems that it serves; `None` means all.
    pub subsystems: Option<Vec<Nqn>>,
    /// Place in the configuration, for messages.
    pub origin: Origin,
}

impl PortConfig {
    /// Whether the port serves the subsystem `nqn`.
    pub(crate) fn serves(&self, nqn: &Nqn) -> bool {
        self.subsystems.as_ref().is_none_or(|list| list.contains(nqn))
    }

    /// Whether the port listens on all addresses of an IP family (0.0.0.0 or ::).
    pub(crate) fn is_wildcard(&self) -> bool {
        self.address.ip().is_unspecified()
    }

    /// Whether the port is the wildcard of the IP family of `ip`.
    pub(crate) fn stands_for(&self, ip: IpAddr) -> bool {
        self.is_wildcard() && self.address.is_ipv4() == ip.is_ipv4()
    }
}

/// Hosts that have to authenticate to the discovery service, to which all may connect otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discovery {
    /// Which hosts have to authenticate.
    pub authentication: Authentication,
    /// Hosts with the key files that they authenticate with.
    pub host_entries: Vec<HostEntry>,
    /// Place in the configuration, for messages.
    pub origin: Origin,
}

impl Discovery {
    /// A discovery service that any host may use.
    pub fn open() -> Self {
        let origin = Origin("discovery".to_owned());
        Self { authentication: Authentication::Offered, host_entries: Vec::new(), origin }
    }
}

/// Hosts that may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPolicy {
    /// Any host that reaches the port.
    Any,
    /// Hosts with these NQNs.
    Listed(Vec<Nqn>),
}

/// Configured medium of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A regular file, opened as [`DirectIo`] says.
    File {
        /// Path of the file; a relative one starts at the folder of the configuration.
        path: PathBuf,
        /// Configured directory that contains the file, which its path must not lead out of; `None`
        /// for a file that is configured itself.
        root: Option<Arc<Path>>,
    },
    /// A block device, which must not be mounted or in use.
    Block {
        /// Path of the device node.
        path: PathBuf,
    },
    /// Reads zeros and discards writes.
    Null {
        /// Size in bytes, a multiple of the block size.
        size_bytes: u64,
    },
    /// Anonymous memory, lost when the target ends.
    Memory {
        /// Size in bytes, a multiple of the block size.
        size_bytes: u64,
    },
}

impl Medium {
    /// Path of a file or block device; `None` for other media.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path, .. } | Self::Block { path } => Some(path),
            Self::Null { .. } | Self::Memory { .. } => None,
        }
    }

    /// Configured directory in which the file was found; `None` for other media.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match self {
            Self::File { root, .. } => root.as_deref(),
            Self::Block { .. } | Self::Null { .. } | Self::Memory { .. } => None,
        }
    }

    /// Path of a file or block device, with the directory of a file; `None` for other media.
    pub(crate) fn place(&self) -> Option<FilePlace<'_>> {
        match self {
            Self::File { path, root } => Some(FilePlace { path, root: root.as_deref() }),
            Self::Block { path } => Some(FilePlace::named(path)),
            Self::Null { .. } | Self::Memory { .. } => None,
        }
    }

    /// UUID of a namespace without a configured one: derived from the name for files and devices of
    /// a dataset, from the path and the machine for others. Memory never has the same UUID on two
    /// machines.
    pub(crate) fn namespace_uuid(&self, identity: &SubsystemIdentity, name: &str) -> Uuid {
        let of_dataset = || identity.dataset_uuid(name);
        match self {
            Self::File { path, .. } | Self::Block { path } => {
                of_dataset().unwrap_or_else(|| identity.path_uuid(path))
            }
            Self::Null { .. } => of_dataset().unwrap_or_else(|| identity.name_uuid(name)),
            Self::Memory { .. } => identity.name_uuid(name),
        }
    }
}

/// Faults that are injected into a medium, for experiments. None by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(from = "FaultsTable")]
pub struct DiskFaults {
    /// Interval of failing operations: each operation whose number is a multiple of it fails.
    pub fail_every: Option<u64>,
    /// Error of the failing operations.
    pub fail_with: BackendError,
    /// Delay before each operation.
    pub delay: Option<Duration>,
    /// Interval of torn writes: each write whose number is a multiple of it stores its first half
    /// only, and fails.
    pub tear_every: Option<u64>,
}

impl DiskFaults {
    /// No faults, as without a table `faults`.
    pub const NONE: Self = Self {
        fail_every: None,
        fail_with: BackendError::from_errno(libc::EIO),
        delay: None,
        tear_every: None,
    };
}

impl Default for DiskFaults {
    fn default() -> Self {
        Self::NONE
    }
}

/// A directory whose regular files are namespaces.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// Path of the directory, searched with its subdirectories.
    pub path: PathBuf,
    /// Suffix of the names of files to export; empty means all files.
    pub suffix: String,
    /// Whether hosts may write.
    pub writable: bool,
    /// Operator's name for the content of all the files, as in [`NamespaceConfig`].
    pub content_id: Option<ContentId>,
    /// Logical block size, as in [`NamespaceConfig`].
    pub block_shift: Option<BlockShift>,
    /// Use of direct I/O.
    pub direct_io: DirectIo,
    /// Whether namespaces are added and removed at run time as files appear and vanish.
    pub watch: bool,
    /// Place in the configuration, for messages.
    pub origin: Origin,
}

/// Place of a part of the configuration, for error messages: `feedrail.toml:12:
/// subsystem.namespace` or `argument shard.tar`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(pub String);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

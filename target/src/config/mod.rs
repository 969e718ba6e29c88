//! What the target exports, to whom, where and with which resources.
//!
//! A [`Config`] comes from a TOML file ([`Config::from_file`]) or from the command line
//! ([`Config::quick`]), and is valid by construction as far as that can be told without opening
//! what it names. Directories are expanded and files opened when the target starts, or by
//! `--check`.

mod document;
mod error;
mod quick;
mod toml_model;
mod units;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nvme_proto::{Nqn, Nsid};
use uuid::Uuid;

pub use self::error::ConfigError;
pub use self::quick::Quick;
pub(crate) use self::quick::{parse_address, parse_machine, parse_nqn};

use crate::backend::BackendError;
pub use crate::derived_ids::{Machine, MachineError, SubsystemIdentity};
pub use crate::limits::{CntlidRange, Limits};

/// A whole configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Which RDMA provider to use.
    pub provider: ProviderChoice,
    /// Whether responses may take back the host's key to its memory, on RDMA devices that can.
    pub send_with_invalidate: bool,
    /// On which cores the poll groups run.
    pub cores: Cores,
    /// For how long a poll group that waits for work polls at the most before it sleeps.
    pub polling: Duration,
    /// Where NSIDs of directories and what hosts write protect are kept.
    pub state_dir: PathBuf,
    /// What names and ids follow from that nobody configured.
    pub machine: Machine,
    /// Resources.
    pub limits: Limits,
    /// Where to listen. At least one.
    pub ports: Vec<PortConfig>,
    /// What to export. At least one.
    pub subsystems: Vec<SubsystemConfig>,
}

/// Which RDMA provider to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ProviderChoice {
    /// Verbs where a usable device routes to the address, else soft.
    #[default]
    Auto,
    /// libibverbs: RDMA NICs and `rdma_rxe`.
    Verbs,
    /// RoCE v2 in userspace over UDP.
    Soft,
}

impl fmt::Display for ProviderChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Soft => "soft",
        })
    }
}

/// On which cores the poll groups run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// So many poll groups, which the scheduler may move.
    Count(u16),
    /// One poll group on each of these, pinned.
    Pinned(Vec<u16>),
}

impl Cores {
    /// How many poll groups there are.
    pub fn count(&self) -> usize {
        match self {
            Self::Count(count) => usize::from(*count),
            Self::Pinned(list) => list.len(),
        }
    }
}

/// A place to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortConfig {
    /// The port id of the discovery log.
    pub id: u16,
    /// The address; port 0 picks a free one.
    pub address: SocketAddr,
    /// The subsystems that it serves; `None` means all.
    pub subsystems: Option<Vec<Nqn>>,
    /// Where this stands in the configuration.
    pub origin: Origin,
}

/// A subsystem.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// Its name.
    pub nqn: Nqn,
    /// Serial number, up to 20 printable ASCII characters.
    pub serial: String,
    /// Model number, up to 40 printable ASCII characters.
    pub model: String,
    /// Who may connect.
    pub hosts: HostPolicy,
    /// Whether hosts may give space back: Dataset Management, and Write Zeroes with Deallocate.
    pub deallocate: bool,
    /// What the UUIDs of its namespaces follow from.
    pub identity: SubsystemIdentity,
    /// Namespaces that the configuration lists one by one.
    pub namespaces: Vec<NamespaceConfig>,
    /// Directories whose files are namespaces.
    pub directories: Vec<DirectoryConfig>,
    /// Where this stands in the configuration.
    pub origin: Origin,
}

/// Who may connect to a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPolicy {
    /// Anybody who reaches the port.
    Any,
    /// Hosts with these NQNs.
    Listed(Vec<Nqn>),
}

/// One namespace.
#[derive(Clone, Debug)]
pub struct NamespaceConfig {
    /// Its id in the subsystem.
    pub nsid: Nsid,
    /// Its name: the relative path in a directory, else the file name or what the configuration
    /// says.
    pub name: String,
    /// Its UUID.
    pub uuid: Uuid,
    /// Its NGUID; zeros when it has none.
    pub nguid: [u8; 16],
    /// What is behind it.
    pub medium: Medium,
    /// How it fails on purpose.
    pub faults: DiskFaults,
    /// Whether hosts may write.
    pub writable: bool,
    /// The operator's name for what the bytes are, the same wherever the same bytes are served.
    pub content_id: Option<String>,
    /// Bytes per logical block as a power of two (9..=12); `None` takes 9, or more where direct I/O
    /// needs it.
    pub lba_shift: Option<u8>,
    /// Where this stands in the configuration.
    pub origin: Origin,
}

/// What is behind a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Medium {
    /// A regular file.
    File {
        /// Its path.
        path: PathBuf,
    },
    /// A block device.
    Block {
        /// Its path.
        path: PathBuf,
    },
    /// Reads zeros, forgets writes.
    Null {
        /// Size.
        size_bytes: u64,
    },
    /// Anonymous memory, lost when the target ends.
    Memory {
        /// Size.
        size_bytes: u64,
    },
}

impl Medium {
    /// The path of a file or block device.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::File { path } | Self::Block { path } => Some(path),
            Self::Null { .. } | Self::Memory { .. } => None,
        }
    }

    /// The UUID of a namespace where the configuration gives none. Files and devices of a dataset
    /// follow from their names, others from their paths on this machine. Memory is never the same
    /// on two machines.
    pub(crate) fn namespace_uuid(&self, identity: &SubsystemIdentity, name: &str) -> Uuid {
        let of_dataset = || identity.dataset_uuid(name);
        match self {
            Self::File { path } | Self::Block { path } => {
                of_dataset().unwrap_or_else(|| identity.path_uuid(path))
            }
            Self::Null { .. } => of_dataset().unwrap_or_else(|| identity.name_uuid(name)),
            Self::Memory { .. } => identity.name_uuid(name),
        }
    }
}

/// Faults of a medium on purpose, for experiments. None by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskFaults {
    /// Every so many operations fail.
    pub fail_every: Option<u64>,
    /// How they fail.
    pub fail_with: BackendError,
    /// Every operation starts so much later.
    pub delay: Option<Duration>,
    /// Every so many writes store only their first half, and fail.
    pub tear_every: Option<u64>,
}

impl DiskFaults {
    /// No faults.
    pub const NONE: Self = Self {
        fail_every: None,
        fail_with: BackendError::from_errno(libc::EIO),
        delay: None,
        tear_every: None,
    };
}

/// A directory whose regular files are namespaces.
#[derive(Clone, Debug)]
pub struct DirectoryConfig {
    /// Its path.
    pub path: PathBuf,
    /// Only files whose name ends so; empty means all files.
    pub suffix: String,
    /// Whether hosts may write.
    pub writable: bool,
    /// The operator's name for what all the files hold, as in [`NamespaceConfig`].
    pub content_id: Option<String>,
    /// As in [`NamespaceConfig`].
    pub lba_shift: Option<u8>,
    /// Where this stands in the configuration.
    pub origin: Origin,
}

/// Where a part of the configuration comes from, for error messages: `feedrail.toml:12:
/// subsystem.namespace` or `argument shard.tar`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(pub String);

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

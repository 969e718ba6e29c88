//! Errors of opening a configuration and of changing the exports at run time.

use std::net::SocketAddr;

use nvme_proto::{Nqn, Nsid};

use crate::backend::OpenError;
use crate::config::identifiers::IdentifierError;
use crate::config::{ConfigError, NamespaceConfig, Origin};
use crate::derived_ids::NAME_BYTES;
use crate::inventory::persist::nsid::NsidFileError;
use crate::inventory::persist::protection::ProtectionError;
use crate::inventory::shard_directory::DirectoryError;
use crate::limits::{MAX_ALLOWED_HOSTS, MAX_NAMESPACES, MAX_REFERRALS, MAX_SUBSYSTEMS};
use crate::listen_error::AddressError;

/// Reason that a configuration cannot be exported; its message is one line with the place in the
/// configuration and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file, device or memory of a namespace cannot be opened.
    #[error("{origin}: {error}")]
    Open {
        /// Place in the configuration that names the namespace.
        origin: Origin,
        /// Failure of the medium.
        error: OpenError,
    },
    /// A directory cannot be scanned for files to export.
    #[error("{origin}: {error}")]
    Directory {
        /// Place in the configuration that names the directory.
        origin: Origin,
        /// Failure to scan it.
        error: DirectoryError,
    },
    /// The file with the NSIDs of earlier runs cannot be read or written.
    #[error(transparent)]
    NsidFile(#[from] NsidFileError),
    /// The file with the write protections of earlier runs cannot be read or written.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    /// Two namespaces have the same UUID.
    #[error(
        "{origin}: \"{name}\" has the same UUID as \"{other}\"; hosts would take them for one disk"
    )]
    SameIdentity {
        /// Place in the configuration that names the second namespace.
        origin: Origin,
        /// Name of the namespace that comes later in the configuration.
        name: String,
        /// Name of the namespace with the same file that comes first.
        other: String,
    },
    /// Two directories of a subsystem have a file with the same relative path.
    #[error(
        "{origin}: \"{name}\" is in another directory of this subsystem too; give one of the directories a \
         subsystem of its own"
    )]
    SameName {
        /// Place in the configuration that names the second directory.
        origin: Origin,
        /// Relative path of the file in both directories.
        name: String,
    },
    /// Two namespaces have the same file or device, and at least one of them is writable.
    #[error(
        "{origin}: \"{name}\" is the file of \"{other}\" ({other_origin}), and hosts may write it: \
         export it once, or read-only each time"
    )]
    SameFile {
        /// Place in the configuration that names the second namespace.
        origin: Origin,
        /// Name of the namespace that comes later in the configuration.
        name: String,
        /// Name of the namespace with the same file that comes first.
        other: String,
        /// Place in the configuration that names the first namespace.
        other_origin: Origin,
    },
    /// A file would be opened again with other settings, while the present namespace holds a lock
    /// on it because hosts may write it.
    #[error(
        "{name} ({origin}) is exported as namespace {nsid} of {nqn} already, and hosts may write it; take it out of \
         the configuration, reload, and put it in again"
    )]
    Written {
        /// Name that the namespace would have.
        name: String,
        /// Place in the configuration that names the new namespace.
        origin: Origin,
        /// NQN of the subsystem that exports the file now.
        nqn: String,
        /// NSID under which the file is exported now.
        nsid: Nsid,
    },
    /// A key file of a host cannot be used.
    #[error("{origin}: {error}")]
    HostKey {
        /// Place in the configuration that names the subsystem.
        origin: Origin,
        /// File, problem and remedy.
        error: String,
    },
    /// The configuration has more than `MAX_NAMESPACES` namespaces.
    #[error("more than {MAX_NAMESPACES} namespaces")]
    TooMany,
}

/// Reason that a change at run time is refused; its message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("there is no subsystem {0}")]
    NoSubsystem(String),
    #[error("there is a subsystem {0} already")]
    SubsystemTaken(String),
    /// The NQN of the new subsystem is that of the discovery service.
    #[error("this is the name of the discovery service, which is always there; choose another")]
    DiscoveryName,
    /// The serial number or model number does not fit its field of Identify Controller.
    #[error("a serial number has 1 to 20 printable ASCII characters, a model number 1 to 40")]
    NotAscii,
    #[error("more than {MAX_SUBSYSTEMS} subsystems")]
    TooManySubsystems,
    #[error("hosts are referred to {0} already")]
    ReferralTaken(SocketAddr),
    #[error("hosts are not referred to {0}")]
    NoReferral(SocketAddr),
    #[error("more than {MAX_REFERRALS} referrals")]
    TooManyReferrals,
    #[error("the target does not listen at {0}")]
    NoPort(SocketAddr),
    /// The target cannot listen at the address of the new port.
    #[error(transparent)]
    Address(#[from] AddressError),
    #[error("subsystem {nqn} is served at {address} already")]
    ServedThere { nqn: String, address: SocketAddr },
    #[error("subsystem {nqn} is not served at {address}")]
    NotServedThere { nqn: String, address: SocketAddr },
    #[error("subsystem {nqn} has no namespace {nsid}")]
    NoNamespace { nqn: String, nsid: Nsid },
    /// Another namespace has the NSID.
    #[error("subsystem {nqn} has a namespace {nsid} already")]
    Taken { nqn: String, nsid: Nsid },
    /// The NSID or the highest NSID of a subsystem is 0 or above this limit.
    #[error("a namespace id is a number from 1 to {0}")]
    OutOfRange(u32),
    /// An identifier of the new namespace is nil or belongs to another namespace.
    #[error(transparent)]
    Identifier(#[from] IdentifierError),
    /// The namespace has no list of hosts, since all hosts see it.
    #[error(
        "all hosts see namespace {nsid} of {nqn}; remove it, and add it with no_auto_visible (--no-auto-visible)"
    )]
    NotMasked { nqn: String, nsid: Nsid },
    /// The namespace cannot have another size, or not the requested one.
    #[error("namespace {nsid} of {nqn} stays as it is: {reason}")]
    NotResizable { nqn: String, nsid: Nsid, reason: &'static str },
    /// The name of the namespace is empty or too long.
    #[error("a name has 1 to {NAME_BYTES} bytes")]
    Name,
    /// A request to clear write protection names a namespace that was added as read-only.
    #[error("namespace {nsid} of {nqn} was added to be read only")]
    ReadOnly { nqn: String, nsid: Nsid },
    /// The list of hosts of a subsystem or namespace refuses the change.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The namespace cannot be opened and exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// The file with the write protections cannot be read or written.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
}

/// Reason that a reload is refused; its message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReloadError {
    /// The configuration file cannot be read or is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration changes these keys, which are read only at the start of the target.
    #[error("nothing is changed, since these are read at the start only: {}; restart the target", .0.join(", "))]
    AtStart(Vec<&'static str>),
    /// The configuration changes a setting that is fixed while its subsystem exists.
    #[error(
        "nothing is changed, since {key} of subsystem {nqn} has changed; take the subsystem out of the configuration, \
         reload, and put it in again"
    )]
    OfSubsystem {
        nqn: String,
        /// Key in the configuration file that has changed.
        key: &'static str,
    },
    /// The configuration has more than `MAX_SUBSYSTEMS` subsystems.
    #[error("nothing is changed: more than {MAX_SUBSYSTEMS} subsystems")]
    TooManySubsystems,
    /// A namespace or directory cannot be opened.
    #[error("nothing is changed: {0}")]
    Export(#[from] ExportError),
    /// The target cannot listen at a new address.
    #[error("nothing is changed: {0}")]
    Address(#[from] AddressError),
    /// The target listens at an address already, under another port ID than the configuration has.
    #[error(
        "nothing is changed, since the target listens at {address} as port id {id} already; give it that id, or take \
         the address out of the configuration, reload, and put it in again"
    )]
    PortId {
        address: SocketAddr,
        /// ID of the existing port.
        id: u16,
    },
}

/// Reason that a change to the hosts of a subsystem or namespace is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HostsError {
    #[error("host {0} is allowed already")]
    Listed(String),
    #[error("host {0} is not among those that are allowed by name")]
    NotListed(String),
    #[error("more than {MAX_ALLOWED_HOSTS} hosts")]
    TooMany,
}

impl ExportError {
    pub(crate) fn cannot_open(namespace: &NamespaceConfig, error: OpenError) -> Self {
        Self::Open { origin: namespace.origin.clone(), error }
    }
}

impl ChangeError {
    pub(crate) fn no_subsystem(nqn: &Nqn) -> Self {
        Self::NoSubsystem(nqn.to_string())
    }
}

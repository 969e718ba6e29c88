//! Errors of opening and changing what a target exports.

use std::net::SocketAddr;

use nvme_proto::{Nqn, Nsid};

use crate::backend::OpenError;
use crate::config::identifiers::IdentifierError;
use crate::config::{NamespaceConfig, Origin};
use crate::derived_ids::NAME_BYTES;
use crate::inventory::allowed_host::HostsError;
use crate::inventory::persist::nsid::NsidFileError;
use crate::inventory::persist::protection::ProtectionError;
use crate::inventory::shard_directory::DirectoryError;
use crate::limits::{MAX_NAMESPACES, MAX_REFERRALS, MAX_SUBSYSTEMS};
use crate::listen_error::AddressError;

/// Reason that a configuration cannot be exported: one line with the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A namespace cannot be opened.
    #[error("{origin}: {error}")]
    Open {
        /// Place in the configuration that names it.
        origin: Origin,
        /// Reason that it cannot be opened.
        error: OpenError,
    },
    /// A directory of shards cannot be listed.
    #[error("{origin}: {error}")]
    Directory {
        /// Place in the configuration that names it.
        origin: Origin,
        /// Reason that it cannot be listed.
        error: DirectoryError,
    },
    /// The NSIDs of earlier runs cannot be read or kept.
    #[error(transparent)]
    NsidFile(#[from] NsidFileError),
    /// The write protections of earlier runs cannot be read or kept.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    /// Two namespaces have the same UUID.
    #[error(
        "{origin}: \"{name}\" has the same UUID as \"{other}\"; hosts would take them for one disk"
    )]
    SameIdentity {
        /// Place in the configuration that names it.
        origin: Origin,
        /// Name of one namespace.
        name: String,
        /// Name of the other namespace.
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
    /// Two namespaces have the same file, and one of them is writable.
    #[error(
        "{origin}: \"{name}\" is the file of \"{other}\" ({other_origin}), and hosts may write it: \
         export it once, or read-only each time"
    )]
    SameFile {
        /// Place in the configuration that names it.
        origin: Origin,
        /// Name of one namespace.
        name: String,
        /// Name of the other namespace.
        other: String,
        /// Place in the configuration that names the other.
        other_origin: Origin,
    },
    /// There are more namespaces than a target can number.
    #[error("more than {MAX_NAMESPACES} namespaces")]
    TooMany,
}

/// Reason that a change of the exports is refused: one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    #[error("there is no subsystem {0}")]
    NoSubsystem(String),
    #[error("there is a subsystem {0} already")]
    SubsystemTaken(String),
    /// The name is that of the discovery service.
    #[error("this is the name of the discovery service, which is always there; choose another")]
    DiscoveryName,
    /// A serial number or model number does not fit Identify.
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
    /// The target cannot listen at the address.
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
    /// The NSID is not a valid one for a namespace of the subsystem.
    #[error("a namespace id is a number from 1 to {0}")]
    OutOfRange(u32),
    /// An identifier of the new namespace is nil or belongs to another namespace.
    #[error(transparent)]
    Identifier(#[from] IdentifierError),
    /// All hosts see the namespace, so hosts cannot be listed.
    #[error(
        "all hosts see namespace {nsid} of {nqn}; remove it, and add it with no_auto_visible (--no-auto-visible)"
    )]
    NotMasked { nqn: String, nsid: Nsid },
    /// The size of the namespace cannot change, or not to this size.
    #[error("namespace {nsid} of {nqn} stays as it is: {reason}")]
    NotResizable { nqn: String, nsid: Nsid, reason: &'static str },
    /// The name of the medium is invalid.
    #[error("a name has 1 to {NAME_BYTES} bytes")]
    Name,
    /// The namespace cannot be made writable.
    #[error("namespace {nsid} of {nqn} was added to be read only")]
    ReadOnly { nqn: String, nsid: Nsid },
    /// The list of hosts cannot change.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The medium cannot be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Write protections cannot be read or kept.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
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

//! Errors of what a target exports.

use std::net::SocketAddr;

use nvme_proto::{Nqn, Nsid};

use crate::backend::OpenError;
use crate::config::Origin;
use crate::config::identifiers::IdentifierError;
use crate::derived_ids::NAME_BYTES;
use crate::inventory::allowed_host::HostsError;
use crate::inventory::persist::nsid::NsidFileError;
use crate::inventory::persist::protection::ProtectionError;
use crate::inventory::shard_directory::DirectoryError;
use crate::limits::{MAX_NAMESPACES, MAX_REFERRALS, MAX_SUBSYSTEMS};
use crate::listen_error::AddressError;

/// The cause for which a configuration can not be exported: one line with the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file, device or size.
    #[error("{origin}: {error}")]
    Open {
        /// Where the configuration names it.
        origin: Origin,
        /// The cause for which it can not be opened.
        error: OpenError,
    },
    /// A directory of shards.
    #[error("{origin}: {error}")]
    Directory {
        /// Where the configuration names it.
        origin: Origin,
        /// The cause for which it can not be listed.
        error: DirectoryError,
    },
    /// NSIDs of earlier runs.
    #[error(transparent)]
    NsidFile(#[from] NsidFileError),
    /// Write protections of earlier runs.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    /// Two namespaces with one identity.
    #[error(
        "{origin}: \"{name}\" has the same UUID as \"{other}\"; hosts would take them for one disk"
    )]
    SameIdentity {
        /// Where the configuration names it.
        origin: Origin,
        /// The name of one namespace.
        name: String,
        /// The name of the other one.
        other: String,
    },
    /// Two directories of a subsystem with the same relative path.
    #[error(
        "{origin}: \"{name}\" is in another directory of this subsystem too; give one of the directories a \
         subsystem of its own"
    )]
    SameName {
        /// Where the configuration names the second directory.
        origin: Origin,
        /// The relative path that both have.
        name: String,
    },
    /// Two namespaces with one file, of which one can be written.
    #[error(
        "{origin}: \"{name}\" is the file of \"{other}\" ({other_origin}), and hosts may write it: \
         export it once, or read-only each time"
    )]
    SameFile {
        /// Where the configuration names it.
        origin: Origin,
        /// The name of one namespace.
        name: String,
        /// The name of the other one.
        other: String,
        /// Where the configuration names that.
        other_origin: Origin,
    },
    /// More namespaces than a target can number.
    #[error("more than {MAX_NAMESPACES} namespaces")]
    TooMany,
}

/// The cause for which the exports stay as they are: one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChangeError {
    /// No subsystem has the name.
    #[error("there is no subsystem {0}")]
    NoSubsystem(String),
    /// Another subsystem has the name.
    #[error("there is a subsystem {0} already")]
    SubsystemTaken(String),
    /// It is the name of the discovery service.
    #[error("this is the name of the discovery service, which is always there; choose another")]
    DiscoveryName,
    /// A serial number or model number that does not fit Identify.
    #[error("a serial number has 1 to 20 printable ASCII characters, a model number 1 to 40")]
    NotAscii,
    #[error("more than {MAX_SUBSYSTEMS} subsystems")]
    TooManySubsystems,
    /// It would change nothing.
    #[error("hosts are referred to {0} already")]
    ReferralTaken(SocketAddr),
    /// It would change nothing.
    #[error("hosts are not referred to {0}")]
    NoReferral(SocketAddr),
    #[error("more than {MAX_REFERRALS} referrals")]
    TooManyReferrals,
    /// The target does not listen there.
    #[error("the target does not listen at {0}")]
    NoPort(SocketAddr),
    /// It can not listen there.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// It would change nothing.
    #[error("subsystem {nqn} is served at {address} already")]
    ServedThere {
        /// The subsystem that was named.
        nqn: String,
        /// The address of both.
        address: SocketAddr,
    },
    /// It would change nothing.
    #[error("subsystem {nqn} is not served at {address}")]
    NotServedThere {
        /// The subsystem that was named.
        nqn: String,
        /// Where it is not served.
        address: SocketAddr,
    },
    /// No namespace has the id.
    #[error("subsystem {nqn} has no namespace {nsid}")]
    NoNamespace {
        /// The subsystem that was named.
        nqn: String,
        /// The id that no namespace has.
        nsid: Nsid,
    },
    /// Another namespace has the id.
    #[error("subsystem {nqn} has a namespace {nsid} already")]
    Taken {
        /// The subsystem that was named.
        nqn: String,
        /// The id of both.
        nsid: Nsid,
    },
    /// The id can not be one of a namespace.
    #[error("a namespace id is a number from 1 to {0}")]
    OutOfRange(u32),
    /// Another namespace has an identifier of the new one, or that is nil.
    #[error(transparent)]
    Identifier(#[from] IdentifierError),
    /// All hosts see the namespace.
    #[error(
        "all hosts see namespace {nsid} of {nqn}; remove it, and add it with no_auto_visible (--no-auto-visible)"
    )]
    NotMasked {
        /// The subsystem that was named.
        nqn: String,
        /// The namespace that was named.
        nsid: Nsid,
    },
    /// The size of the namespace can not change, or not in this way.
    #[error("namespace {nsid} of {nqn} stays as it is: {reason}")]
    NotResizable {
        /// The subsystem that was named.
        nqn: String,
        /// The namespace that was named.
        nsid: Nsid,
        /// What is in the way.
        reason: &'static str,
    },
    /// No namespace has such a name.
    #[error("a name has 1 to {NAME_BYTES} bytes")]
    Name,
    /// Hosts can not be let write the namespace.
    #[error("namespace {nsid} of {nqn} was added to be read only")]
    ReadOnly {
        /// The subsystem that was named.
        nqn: String,
        /// The namespace that was named.
        nsid: Nsid,
    },
    /// The hosts of a subsystem stay as they are.
    #[error(transparent)]
    Hosts(#[from] HostsError),
    /// The medium can not be exported.
    #[error(transparent)]
    Export(#[from] ExportError),
    /// Write protections can not be read or kept.
    #[error(transparent)]
    Protection(#[from] ProtectionError),
}

impl ChangeError {
    pub(crate) fn no_subsystem(nqn: &Nqn) -> Self {
        Self::NoSubsystem(nqn.to_string())
    }
}

//! Changes that an edit makes to the exports, as operators are told of them.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use nvme_proto::Nsid;
use serde::Serialize;

use crate::backend::OpenError;
use crate::config::{Authentication, NamespaceConfig, QosLimits, QosOverride};
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::namespace::Replacement;
use crate::inventory::subsystem::Subsystem;

/// Result of an edit that was applied and announced.
#[derive(Debug, Default)]
pub(crate) struct EditReport {
    pub(crate) changes: Vec<ExportChange>,
    /// Removed namespaces that were not flushed and closed.
    pub(crate) warnings: Vec<UnclosedNamespace>,
    /// Files of directories that cannot be opened.
    pub(crate) unopened: Vec<UnopenedFile>,
}

/// Removed namespace that could not be flushed, or not be closed yet.
#[derive(Debug)]
pub(crate) struct UnclosedNamespace {
    pub(crate) nsid: Nsid,
    pub(crate) name: String,
    pub(crate) problem: String,
}

impl fmt::Display for UnclosedNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "namespace {} ({}): {}", self.nsid, self.name, self.problem)
    }
}

/// File of a directory that is left out because it cannot be opened.
#[derive(Debug)]
pub(crate) struct UnopenedFile {
    pub(crate) subsystem: Arc<Subsystem>,
    pub(crate) config: NamespaceConfig,
    pub(crate) error: OpenError,
}

impl UnopenedFile {
    pub(crate) fn path(&self) -> &Path {
        self.config.medium.path().unwrap_or(Path::new(""))
    }
}

/// Change to one subsystem, serialized as `feedrail_reload_config` reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct ExportChange {
    pub(crate) nqn: String,
    #[serde(flatten)]
    pub(crate) kind: ExportChangeKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub(crate) enum ExportChangeKind {
    AddNs {
        nsid: u32,
        name: String,
        size_bytes: u64,
    },
    /// The namespace is removed, and none gets its NSID.
    RemoveNs {
        nsid: u32,
        name: String,
    },
    /// A new namespace gets the NSID of one that is removed.
    ReplaceNs {
        nsid: u32,
        name: String,
        size_bytes: u64,
        reason: Replacement,
    },
    AddHost {
        host: String,
    },
    RemoveHost {
        host: String,
    },
    /// The keys of a host are set, replaced or removed.
    SetKeys {
        host: String,
    },
    SetAuthentication {
        authentication: Authentication,
    },
    AllowAnyHost {
        allow_any_host: bool,
    },
    /// The host gets other limits of its own.
    LimitHost {
        host: String,
        limits: QosOverride,
    },
    /// Hosts without limits of their own get others.
    LimitEachHost {
        limits: QosLimits,
    },
    /// The namespace gets other limits.
    LimitNs {
        nsid: u32,
        name: String,
        limits: QosLimits,
    },
    AddSubsystem,
    /// The subsystem and all its namespaces are removed.
    RemoveSubsystem,
    AddListener {
        address: SocketAddr,
    },
    RemoveListener {
        address: SocketAddr,
    },
}

impl From<HostsChange> for ExportChangeKind {
    fn from(change: HostsChange) -> Self {
        match change {
            HostsChange::Add(host, _) => Self::AddHost { host: host.to_string() },
            HostsChange::Remove(host) => Self::RemoveHost { host: host.to_string() },
            HostsChange::SetKeys(host, _) => Self::SetKeys { host: host.to_string() },
            HostsChange::Authenticate(authentication) => Self::SetAuthentication { authentication },
            HostsChange::AllowAny(allow_any_host) => Self::AllowAnyHost { allow_any_host },
            HostsChange::Limit(host, limits) => Self::LimitHost { host: host.to_string(), limits },
            HostsChange::LimitEach(limits) => Self::LimitEachHost { limits },
        }
    }
}

pub(super) fn change_of(subsystem: &Subsystem, kind: ExportChangeKind) -> ExportChange {
    ExportChange { nqn: subsystem.nqn.to_string(), kind }
}

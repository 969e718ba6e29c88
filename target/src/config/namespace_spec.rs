//! Settings of a namespace as a configuration, the command line or an operator gives them.

use std::collections::BTreeSet;
use std::ops::Deref;

use nvme_proto::{Nqn, Nsid};
use uuid::Uuid;

use super::values::{
    BlockShift, ContentId, Description, Eui64, NamespaceName, Nguid, derived_nguid,
};
use super::{AnaGroupId, DirectIo, DiskFaults, Medium, Origin, QosLimits};
use crate::derived_ids::SubsystemIdentity;

/// Settings of a namespace that do not depend on its subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceSettings {
    /// Name in messages: the relative path in a directory, else the configured name or the file
    /// name.
    pub name: NamespaceName,
    /// Medium behind the namespace.
    pub medium: Medium,
    /// Whether hosts may write.
    pub writable: bool,
    /// EUI-64 that Identify reports; `None` if it has none.
    pub eui64: Option<Eui64>,
    /// Operator's name for the bytes, the same on all targets that serve these bytes. The
    /// namespace's generation is derived from it.
    pub content_id: Option<ContentId>,
    /// Operator's description, which hosts, reports and metrics show.
    pub description: Option<Description>,
    /// Logical block size; `None` chooses 512, or more if direct I/O needs it.
    pub block_shift: Option<BlockShift>,
    /// Use of direct I/O; ignored without a file or device.
    pub direct_io: DirectIo,
    /// ANA group that it belongs to.
    pub ana_group: AnaGroupId,
    /// NQNs of the hosts that see it; `None` for all hosts.
    pub visible_to: Option<BTreeSet<Nqn>>,
    /// Limits of all hosts together.
    pub qos: QosLimits,
    /// Faults injected into the medium.
    pub faults: DiskFaults,
}

impl NamespaceSettings {
    /// Creates settings in which all others have their defaults.
    pub fn new(name: NamespaceName, medium: Medium, writable: bool) -> Self {
        Self {
            name,
            medium,
            writable,
            eui64: None,
            content_id: None,
            description: None,
            block_shift: None,
            direct_io: DirectIo::default(),
            ana_group: AnaGroupId::DEFAULT,
            visible_to: None,
            qos: QosLimits::default(),
            faults: DiskFaults::NONE,
        }
    }

    /// Texts that differ from their defaults, with the keys that files and RPCs give them.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let direct_io = Some(self.direct_io).filter(|direct_io| *direct_io != DirectIo::default());
        let texts = [
            ("content_id", self.content_id.as_deref()),
            ("description", self.description.as_deref()),
            ("direct_io", direct_io.map(DirectIo::word)),
        ];
        texts.into_iter().filter_map(|(key, text)| Some((key, text?)))
    }

    /// Returns the namespace with this UUID, and with the NGUID that is derived from it.
    pub fn with_uuid(self, uuid: Uuid, nsid: Nsid, origin: Origin) -> NamespaceConfig {
        NamespaceConfig { nsid, uuid, nguid: derived_nguid(uuid), origin, settings: self }
    }
}

/// Settings of a namespace before it has an NSID. Identifiers that are `None` are derived.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceSpec {
    pub(crate) uuid: Option<Uuid>,
    pub(crate) nguid: Option<Nguid>,
    pub(crate) settings: NamespaceSettings,
}

impl From<NamespaceSettings> for NamespaceSpec {
    fn from(settings: NamespaceSettings) -> Self {
        Self { uuid: None, nguid: None, settings }
    }
}

impl NamespaceSpec {
    /// Returns the configuration of the namespace in the subsystem with this identity.
    pub(crate) fn resolve(
        self,
        nsid: Nsid,
        identity: &SubsystemIdentity,
        origin: Origin,
    ) -> NamespaceConfig {
        let Self { uuid, nguid, settings } = self;
        let derived = || settings.medium.namespace_uuid(identity, &settings.name);
        let uuid = uuid.unwrap_or_else(derived);
        let config = settings.with_uuid(uuid, nsid, origin);
        NamespaceConfig { nguid: nguid.map_or(config.nguid, |Nguid(id)| id), ..config }
    }
}

/// Configuration of one namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceConfig {
    /// NSID in the subsystem.
    pub nsid: Nsid,
    /// UUID that Identify reports, derived if the configuration has none.
    pub uuid: Uuid,
    /// NGUID that Identify reports, derived if the configuration has none.
    pub nguid: [u8; 16],
    /// Settings, which can also be read as fields of this type.
    pub settings: NamespaceSettings,
    /// Place in the configuration, for messages.
    pub origin: Origin,
}

impl Deref for NamespaceConfig {
    type Target = NamespaceSettings;

    fn deref(&self) -> &NamespaceSettings {
        &self.settings
    }
}

impl NamespaceConfig {
    /// Whether `other` is equal, apart from its place in the file.
    pub(crate) fn describes_same(&self, other: &Self) -> bool {
        *self == Self { origin: self.origin.clone(), ..other.clone() }
    }

    /// Whether `other` is equal, apart from its place in the file and its limits, which can change
    /// while it is exported.
    pub(crate) fn describes_same_but_limits(&self, other: &Self) -> bool {
        let mut other = other.clone();
        other.settings.qos = self.qos;
        self.describes_same(&other)
    }
}

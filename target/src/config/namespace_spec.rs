//! Settings of a namespace as a configuration, the command line or an operator gives them.

use std::collections::BTreeSet;

use nvme_proto::{Nqn, Nsid};
use uuid::Uuid;

use super::identifiers::{Eui64, derived_nguid};
use super::{AnaGroupId, DirectIo, DiskFaults, Medium, NamespaceConfig, Origin};
use crate::derived_ids::SubsystemIdentity;

/// Settings of a namespace before it has an NSID. Identifiers that are `None` are derived.
#[derive(Clone, Debug)]
pub(crate) struct NamespaceSpec {
    /// Name in log messages and reports.
    pub(crate) name: String,
    pub(crate) medium: Medium,
    pub(crate) writable: bool,
    pub(crate) uuid: Option<Uuid>,
    pub(crate) nguid: Option<[u8; 16]>,
    pub(crate) eui64: Option<Eui64>,
    pub(crate) content_id: Option<String>,
    pub(crate) lba_shift: Option<u8>,
    pub(crate) direct_io: DirectIo,
    pub(crate) ana_group: AnaGroupId,
    pub(crate) visible_to: Option<BTreeSet<Nqn>>,
    pub(crate) faults: DiskFaults,
}

impl NamespaceSpec {
    /// Creates settings in which all others have their defaults.
    pub(crate) fn new(name: String, medium: Medium, writable: bool) -> Self {
        Self {
            name,
            medium,
            writable,
            uuid: None,
            nguid: None,
            eui64: None,
            content_id: None,
            lba_shift: None,
            direct_io: DirectIo::default(),
            ana_group: AnaGroupId::DEFAULT,
            visible_to: None,
            faults: DiskFaults::NONE,
        }
    }

    /// Returns the configuration of the namespace in the subsystem with this identity.
    pub(crate) fn resolve(
        self,
        nsid: Nsid,
        identity: &SubsystemIdentity,
        origin: Origin,
    ) -> NamespaceConfig {
        let derived = || self.medium.namespace_uuid(identity, &self.name);
        let uuid = self.uuid.unwrap_or_else(derived);
        NamespaceConfig {
            nsid,
            uuid,
            nguid: self.nguid.unwrap_or_else(|| derived_nguid(uuid)),
            eui64: self.eui64,
            name: self.name,
            medium: self.medium,
            faults: self.faults,
            writable: self.writable,
            content_id: self.content_id,
            lba_shift: self.lba_shift,
            direct_io: self.direct_io,
            ana_group: self.ana_group,
            visible_to: self.visible_to,
            origin,
        }
    }
}

//! Kinds of controllers: I/O controllers and discovery controllers.

use std::sync::Arc;

use nvme_proto::Nqn;

use crate::inventory::Inventory;
use crate::inventory::host_keys::TransactionTerms;
use crate::inventory::named_host::NamedHost;
use crate::inventory::subsystem::Subsystem;
use crate::qos::Quota;

/// Kind of a controller, with the subsystem of an I/O controller.
#[derive(Clone, Debug)]
pub(crate) enum ControllerKind {
    /// I/O controller, with access to the namespaces of a subsystem.
    Nvm(Arc<Subsystem>),
    /// Discovery controller, which has a discovery log and no namespaces. Hosts know the discovery
    /// service by the well-known NQN or by a unique one.
    Discovery(Box<Nqn>),
}

impl ControllerKind {
    /// Whether a host has to authenticate.
    pub(super) fn demands_authentication(&self, inventory: &Inventory, host: &NamedHost) -> bool {
        match self {
            Self::Nvm(subsystem) => subsystem.demands_authentication(host),
            Self::Discovery(_) => inventory.discovery_keyring().demands(host),
        }
    }

    /// Quota of a host; `None` for a discovery controller, which has no I/O commands.
    pub(super) fn quota_of(&self, host: &NamedHost) -> Option<Arc<Quota>> {
        match self {
            Self::Nvm(subsystem) => Some(subsystem.quota_of(&host.nqn.0)),
            Self::Discovery(_) => None,
        }
    }

    /// Keys and parameters for the next authentication of a host.
    pub(super) fn transaction_terms(
        &self,
        inventory: &Inventory,
        host: &NamedHost,
    ) -> TransactionTerms {
        let policy = inventory.negotiable().policy();
        match self {
            Self::Nvm(subsystem) => subsystem.transaction_terms(host, &policy),
            Self::Discovery(nqn) => inventory.discovery_keyring().terms(host, nqn, &policy),
        }
    }
}

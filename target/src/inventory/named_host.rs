//! Identity of a host in its Connect command.

use std::collections::BTreeSet;

use nvme_proto::{HostId, HostNqn, Nqn};

/// Identity that a host sent in a Connect command, the same for all queues of an association.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedHost {
    /// Host NQN, or one derived from the Host Identifier if the host sent none.
    pub(crate) nqn: HostNqn,
    /// Whether the host sent an NQN. If false, it may connect only to subsystems that allow any
    /// host.
    pub(crate) named: bool,
    /// Host Identifier (HOSTID) of the Connect command.
    pub(crate) id: HostId,
}

impl NamedHost {
    /// Whether the host is in `hosts`; true if `hosts` is `None`. A host without an NQN is in no
    /// list.
    pub(crate) fn is_among(&self, hosts: Option<&BTreeSet<Nqn>>) -> bool {
        hosts.is_none_or(|hosts| self.named && hosts.contains(&self.nqn.0))
    }
}
